"""Attacks from papers that only comparisons use."""
