"""Accuracy cost of privacy noise for every mechanism."""
