"""Measurements of single hosts, put together on the control node."""
