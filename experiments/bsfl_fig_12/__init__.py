"""BSFL Fig. 12: CIFAR-10, non-i.i.d."""
