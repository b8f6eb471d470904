"""Runs the studies behind the tables and figures of the documentation, one file a study."""
