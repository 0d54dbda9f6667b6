"""Index rules under the same PAUSE maximisation."""
