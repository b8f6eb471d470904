"""An aggregator combines the updates of a round into one."""
