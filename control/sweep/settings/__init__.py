"""Sweeps over settings: which values train the best model."""
