"""The data files of tables: how they are written and ordered, and how few rows are read of them."""
