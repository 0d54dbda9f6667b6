"""From a config and a key to a result: worlds, rounds, recording, batches, processes."""
