"""A run told in words, and as one page that opens without a network."""
