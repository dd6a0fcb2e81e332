"""Runs: plan, launch, record, verdict."""
