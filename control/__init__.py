"""Computation on the control node: may import `trainer`, never the reverse."""
