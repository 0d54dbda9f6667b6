"""Synchronous rounds against overlapping server steps, at equal times and budgets."""
