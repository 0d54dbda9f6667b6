"""How far annealing stays from the exact optimum in the large network: 15 of 300."""
