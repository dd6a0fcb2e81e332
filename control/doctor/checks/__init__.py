"""Checks of a cluster's ability to train: from the probes' results to one line per check. Pure functions."""
