"""Analysis of results on the host: metrics, regret, ledgers, tables and figures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["metrics", "plotting", "regret"]
)
