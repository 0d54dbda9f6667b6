"""BSFL Tables 1 and 2: alpha and beta varied on CIFAR-10."""
