"""Which policy for which fleet, measured."""
