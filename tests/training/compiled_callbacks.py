"""A module beside `compiled.py`."""

import keras


def halved():
    """Halve the rate after each epoch, end after three that are no better by 100, and write a file."""
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=100.0, restore_best_weights=True)
    halve = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=100.0)
    return [halve, stop, keras.callbacks.CSVLogger("log.csv")]
