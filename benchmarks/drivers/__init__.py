"""One thin driver a contender. Each runs as a process in the contender's own environment."""
