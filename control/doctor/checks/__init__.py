"""Whether this cluster can train: from the probes' results to one line per check. Pure functions."""
