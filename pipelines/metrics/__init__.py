"""What a running job tells of itself: metrics, health, and lines of its log."""
