"""What the tasks of Spark do: land records, deliver messages."""
