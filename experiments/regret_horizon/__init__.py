"""Growth of PAUSE's regret in bandit-only runs to a million rounds."""
