"""One round: what is let in, how it is judged, and what becomes of it."""
