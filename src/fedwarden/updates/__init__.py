"""The rows of a round: n clients times d parameters, read once."""
