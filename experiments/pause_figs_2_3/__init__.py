"""PAUSE Figs. 2 and 3: CIFAR-10, i.i.d., small network."""
