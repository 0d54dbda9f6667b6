"""The authors' recorded MNIST runs, reproduced."""
