"""What outlives a request: shared by the workers of a process, and later by replicas."""
