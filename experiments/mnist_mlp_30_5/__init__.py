"""Reproduction of the PAUSE authors' recorded MNIST runs."""
