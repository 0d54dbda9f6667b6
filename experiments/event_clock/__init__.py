"""Rounds against server steps that overlap, at equal seconds and equal budget."""
