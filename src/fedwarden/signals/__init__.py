"""Signals: what is measured of each client in one round."""
