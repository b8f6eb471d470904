"""Local training of the clients of a round, on one core or many, or on a GPU."""
