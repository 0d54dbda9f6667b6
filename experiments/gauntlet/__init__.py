"""Every policy on every fleet."""
