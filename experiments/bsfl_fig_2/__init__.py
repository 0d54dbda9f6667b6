"""BSFL Fig. 2: the generalization function."""
