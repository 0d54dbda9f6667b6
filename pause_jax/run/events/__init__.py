"""Simulation of overlapping rounds with an asynchronous server."""
