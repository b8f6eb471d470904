"""Simulates a federation in one process: data, training, attackers, server."""
