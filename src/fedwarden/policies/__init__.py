"""Policies: what happens to a client that stands out."""
