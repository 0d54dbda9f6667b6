"""Recorded quantities of a run, and its result."""
