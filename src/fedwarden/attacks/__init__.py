"""Attacks: what malicious or broken clients do; used by the simulator only."""
