"""The command line, `txlake`: one file a noun. It reads arguments, calls another room, prints."""
