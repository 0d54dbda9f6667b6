"""Regret of every registered policy, with the papers' bounds."""
