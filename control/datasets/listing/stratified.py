"""An order of labelled examples of which every prefix keeps the proportions of the classes."""

import numpy as np

SPLIT_SEED = 0


def stratified_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Order `[n]` of all indices in which every prefix keeps the proportions of the classes.

    Within a class the order is random (from `seed`); image k of a class with m images is placed
    at (k + 0.5) / m, so the first fraction f of the list holds f of each class, to within one.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        position[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((labels, position))
