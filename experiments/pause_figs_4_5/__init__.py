"""PAUSE Figs. 4 and 5: CIFAR-10, non-i.i.d., small network."""
