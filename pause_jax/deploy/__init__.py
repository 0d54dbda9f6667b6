"""Client selection on a real server, with or without Flower."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["selector"])
