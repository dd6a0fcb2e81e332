"""What the control node computes; may import `trainer`, never the other way."""
