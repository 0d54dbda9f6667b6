"""Sweeps of many runs: planning, execution, storage and labelled results."""
