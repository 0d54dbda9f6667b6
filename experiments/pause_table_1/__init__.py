"""PAUSE Table I: neighbours and time against K, connectivity, the sign as printed."""
