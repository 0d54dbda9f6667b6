"""One run: rounds, their state, and what is recorded."""
