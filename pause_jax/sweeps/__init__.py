"""Many runs: planned in chunks, executed, stored, and labelled."""
