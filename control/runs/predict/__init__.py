"""Predictions of new examples by a run's model."""
