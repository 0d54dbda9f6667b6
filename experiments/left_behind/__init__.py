"""Accuracy of every policy at the worst tenth of the clients."""
