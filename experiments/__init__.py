"""Experiments, one folder per figure or set of recorded runs, each with its expected numbers."""
