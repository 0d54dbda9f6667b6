"""PAUSE Table I: neighbours and time against K, connectivity, and the printed sign."""
