"""PAUSE Figs. 6 and 7: MNIST, large network."""
