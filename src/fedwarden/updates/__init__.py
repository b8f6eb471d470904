"""The updates of a round, n clients times d parameters: read in blocks of columns, never copied into one matrix."""
