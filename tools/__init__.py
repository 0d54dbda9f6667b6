"""Programs that only developers run."""
