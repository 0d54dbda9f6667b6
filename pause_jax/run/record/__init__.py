"""Recorded quantities and the result of a run."""
