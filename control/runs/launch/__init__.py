"""Launches: their records, reservations of a name, waiting runs, the state from which a run resumes."""
