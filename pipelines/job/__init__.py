"""The job: one process that streams, epoch after epoch, and maintains the tables between them."""
