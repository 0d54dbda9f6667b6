"""The world: how long clients take, and who is available."""
