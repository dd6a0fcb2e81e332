"""Requests of workers with a step's sums: to stop, and to save the state."""

import numpy as np

SUMS = ("asks", "images")
"""The first columns of a call's result, each summed over all workers, float32; the states of the model's metrics follow."""
STOP, SAVE = 1.0, 4096.0
"""Requests of a worker to all after a call: to stop, and to save the state, which only the chief requests. Sums stay apart: there are
fewer devices than SAVE, and float32 counts to 2**24."""


def requests(rows: np.ndarray) -> tuple[bool, bool]:
    """Return whether a worker asks all to stop, and whether the chief asks them to save, from rows of steps: equal on all workers."""
    total = float(rows[-1, 0]) if len(rows) else 0.0
    return total % SAVE > 0, total >= SAVE
