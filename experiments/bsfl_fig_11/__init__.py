"""BSFL Fig. 11: Fashion-MNIST, non-i.i.d."""
