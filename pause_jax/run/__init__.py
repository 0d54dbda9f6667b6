"""Simulation of a single run, including its rounds, state and recorded quantities."""
