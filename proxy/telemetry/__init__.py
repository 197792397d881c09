"""What is measured: records, metrics."""
