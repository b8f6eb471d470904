"""A history turns what a client scored in many rounds into one score."""
