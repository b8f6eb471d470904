"""Aggregation rules against loops written from their papers: fedwarden's own, and those of any other library."""
