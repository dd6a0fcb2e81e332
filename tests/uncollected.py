"""Imported first by what only imports and is forked: all of it stays, and looking for garbage takes 1.3 s of the import of TensorFlow."""

import gc

gc.disable()
