"""Reproduces the tables and figures of the three papers behind fedwarden, one file a paper or a few."""
