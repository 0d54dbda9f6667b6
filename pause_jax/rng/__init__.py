"""Randomness: every stream by name, random bits for many clients, and exact sums."""
