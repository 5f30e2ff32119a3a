"""Programs that show txlake at work: an order service, a points service, and both in a demo."""
