"""Many runs of scenarios: kept as they come, and told in tables; the adversary's suite."""
