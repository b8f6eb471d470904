"""A policy says what becomes of a flagged client."""
