"""A lake: its tables and their one way of being appended to, its epochs, and reads of few rows."""
