"""Server steps of the asynchronous clock, with overlapping rounds."""
