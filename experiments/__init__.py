"""Experiments: one folder a figure or a set of recorded runs, each with its expected numbers."""
