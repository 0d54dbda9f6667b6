"""BSFL Fig. 8: Fashion-MNIST, i.i.d."""
