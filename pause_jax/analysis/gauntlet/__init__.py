"""Benchmark of selection policies on fixed fleets, with the scores of the library's policies."""
