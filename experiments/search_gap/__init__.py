"""Gap between annealing and the exact optimum in the large network, 15 of 300 clients."""
