"""A signal measures every client in one round; a higher score is more suspicious."""
