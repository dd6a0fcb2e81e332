"""Sweeps: design, trials, model of a step, advice."""
