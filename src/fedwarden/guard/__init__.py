"""Decides on one round: which replies are let in, who is flagged, and what goes into the model."""
