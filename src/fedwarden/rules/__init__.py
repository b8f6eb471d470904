"""Rules: who stands out among the scores of a round."""
