"""Every policy on every fleet, with accuracy after equal times."""
