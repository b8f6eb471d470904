"""A participant that audits what the shared model tells of the others."""
