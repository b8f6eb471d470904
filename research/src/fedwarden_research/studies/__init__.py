"""Studies: plans of many runs, and the pages that they make."""
