"""Server steps of an asynchronous clock, where rounds overlap."""
