"""A sink sends the rounds of a run from the ledger to another program; a run needs none."""
