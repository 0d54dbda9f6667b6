"""Federated rounds, their state, and the loop over rounds."""
