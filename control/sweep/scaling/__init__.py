"""Sweeps over workers: how the time of a training grows and falls with their number, and how many to use."""
