"""A federated round, its state, and the loop over rounds."""
