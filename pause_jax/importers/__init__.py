"""Importers that convert public files of other projects, one module per source."""
