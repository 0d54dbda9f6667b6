"""BSFL Fig. 4 and its 98.3 %: ALSA against classic simulated annealing, 25 of 500 clients."""
