"""Tells a run in plain sentences, and as one HTML file that opens without a network."""
