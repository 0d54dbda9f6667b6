"""Importers for data files from other projects, with one module per source."""
