"""What a run has left: outcome, metrics, evaluations, speed, pictures."""
