"""Histories: what is remembered of each client over rounds."""
