"""Simulation of one run: its rounds, their state and the recorded quantities."""
