"""Speed benchmarks, as ratios to other simulators measured side by side in one run."""
