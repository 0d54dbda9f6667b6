"""Policies at work on a real server, also one of Flower."""
