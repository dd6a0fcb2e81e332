"""float32 to bfloat16 and back by bit operations: ml_dtypes' own casts convert one element at a time."""

import ml_dtypes
import numpy as np

KIND = np.dtype(ml_dtypes.bfloat16)
NAN = 0x7FC0


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 as bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)
    unordered = np.isnan(values)
    if unordered.any():
        rounded[unordered] = NAN
    return rounded.view(KIND)


def widen(values: np.ndarray) -> np.ndarray:
    """bfloat16, or any other floating type, as float32."""
    if values.dtype != KIND:
        return values.astype(np.float32, copy=False)
    return (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
