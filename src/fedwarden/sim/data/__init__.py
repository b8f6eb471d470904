"""Which data, and who holds it."""
