"""One run of the CIFAR-10 preset."""
