"""What a run records, and its result."""
