"""Texts of commands on a run: plan, progress, result, status."""
