"""Public files of others, turned into the library's own: one file a source."""
