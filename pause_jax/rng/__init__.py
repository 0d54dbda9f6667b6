"""Named random streams, random bits for many clients, and reproducible sums."""
