"""A user's own functions and callbacks: imported, tried without a trace, kept in a state."""
