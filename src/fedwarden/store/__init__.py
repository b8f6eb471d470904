"""The store keeps what a run leaves behind: its ledger and its checkpoints."""
