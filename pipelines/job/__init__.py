"""The job: one process that streams, epoch after epoch, and looks after the tables between them."""
