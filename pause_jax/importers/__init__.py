"""Importers for data files of other projects, one module per source."""
