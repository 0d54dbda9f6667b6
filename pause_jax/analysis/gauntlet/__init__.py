"""Benchmark of selection policies on fixed fleets, with stored scores of the built-in policies."""
