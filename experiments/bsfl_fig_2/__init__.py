"""BSFL Fig. 2: the generalization reward."""
