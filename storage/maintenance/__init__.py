"""Maintenance of tables: merge small files, shorten logs, delete needless files and old rows."""
