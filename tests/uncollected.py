"""Imported first by a fork server: what it imports never becomes garbage, and the collector takes 1.3 s of the import of TensorFlow."""

import gc

gc.disable()
