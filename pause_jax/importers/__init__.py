"""Importers of public data files from other projects, one module per source."""
