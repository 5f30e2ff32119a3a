"""Wire the jobs and the command line: nothing here decides, nothing here stores."""
