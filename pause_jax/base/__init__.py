"""Utilities for configs, files and compilation, independent of federated learning."""
