"""Drivers, one per contender, each a process in the contender's environment."""
