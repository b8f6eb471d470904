"""Running clients' models: on a probe, together or in turn."""
