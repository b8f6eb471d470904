"""Laws of aggregation rules, for our own and for any other library's function: ``python -m fedwarden.conformance``."""
