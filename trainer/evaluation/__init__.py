"""Test metrics, predictions, and what an evaluation measures of them."""
