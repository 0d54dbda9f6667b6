"""BSFL Figs. 5 and 6: participation of ten latency groups."""
