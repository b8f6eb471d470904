"""The audit: what one participant can infer of the others from the shared model."""
