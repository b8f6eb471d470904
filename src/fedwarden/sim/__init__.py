"""Simulates a federation in one process: data, local training, attackers, server."""
