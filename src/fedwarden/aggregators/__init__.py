"""Aggregators: how the updates become one."""
