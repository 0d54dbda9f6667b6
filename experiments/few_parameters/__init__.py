"""Accuracy and privacy of whole updates, if clients train few parameters."""
