"""The laboratory for the searches that several experiments use; it has no figure of its own."""
