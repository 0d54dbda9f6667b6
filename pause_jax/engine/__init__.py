"""From a config and a key to a result: keys, rounds, recording, batches, processes."""
