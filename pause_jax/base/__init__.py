"""Utilities for configs, files and compilation that are independent of federated learning."""
