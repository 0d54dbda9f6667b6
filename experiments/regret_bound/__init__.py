"""Regret bound without gaps, compared with measured regret."""
