"""Recorded quantities and results of runs."""
