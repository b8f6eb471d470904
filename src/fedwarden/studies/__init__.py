"""Runs many scenarios and compares them: the runner, the grid of defences, the suite of attacks."""
