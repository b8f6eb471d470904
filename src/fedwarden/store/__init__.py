"""The ledger and the checkpoints."""
