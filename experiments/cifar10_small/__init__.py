"""PAUSE authors' recorded CIFAR-10 runs on the small network."""
