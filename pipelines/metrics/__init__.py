"""The reports of a running job: metrics, health, and lines of its log."""
