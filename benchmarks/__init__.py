"""Speed measurements, each run as a module: ``python -m benchmarks.selection``."""
