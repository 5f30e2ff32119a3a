"""Store: tables, the epoch protocol, reads by bounds, and the lock of the jars."""
