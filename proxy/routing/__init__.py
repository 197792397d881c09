"""Which target is tried, and in which order."""
