"""A rule sets the threshold of a round and flags the clients above it."""
