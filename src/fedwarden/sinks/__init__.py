"""Sinks: a run's values by client and round, sent to other programs; all of them read the ledger, none is required."""
