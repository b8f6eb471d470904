"""Types, the fold over column blocks, the registry, seeds and statistics; imports nothing else of the package."""
