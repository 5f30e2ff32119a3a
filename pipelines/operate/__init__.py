"""What operators look for and what they may do; each record is tried before it is written."""
