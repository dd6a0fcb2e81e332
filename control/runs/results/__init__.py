"""Results of a run: outcome, metrics, evaluations, speed, pictures."""
