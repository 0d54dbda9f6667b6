"""BSFL Fig. 9: CIFAR-10, i.i.d., ResNet-18."""
