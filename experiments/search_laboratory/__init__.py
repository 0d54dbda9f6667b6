"""Laboratory for the searches, shared by several experiments."""
