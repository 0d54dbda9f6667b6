"""Planning, execution, storage and labelled results of sweeps."""
