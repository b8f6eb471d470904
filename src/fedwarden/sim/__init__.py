"""The in-process simulator."""
