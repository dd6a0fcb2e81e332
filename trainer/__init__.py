"""Lockstep's trainer: the Python package that every node runs."""
