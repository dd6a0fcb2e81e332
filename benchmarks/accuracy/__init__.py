"""Time to an accuracy: its table and picture."""
