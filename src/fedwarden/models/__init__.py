"""Runs many clients' models on the same samples, together or in turn, and compares what they compute."""
