"""Simulation of overlapping rounds, in which an asynchronous server steps as answers arrive."""
