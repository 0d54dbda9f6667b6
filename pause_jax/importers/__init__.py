"""Importers: public files of other projects as files of this library, one module per source."""
