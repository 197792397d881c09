"""chatfuse: a reverse proxy that keeps chat APIs fast and inside their limits."""

__version__ = "0.1.0"
