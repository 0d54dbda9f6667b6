"""A regret bound without gaps."""
