"""PAUSE Figs. 8 and 9: CIFAR-10, non-i.i.d., large network."""
