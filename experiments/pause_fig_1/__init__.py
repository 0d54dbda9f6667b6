"""PAUSE Fig. 1: the generalization reward."""
