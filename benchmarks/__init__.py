"""Speed, as ratios to other simulators measured side by side in one run."""
