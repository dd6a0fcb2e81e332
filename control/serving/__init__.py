"""Trained models for others: exported, and served over HTTP."""
