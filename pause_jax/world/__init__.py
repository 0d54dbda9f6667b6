"""Simulated client latency and availability."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["availability", "latency"])
