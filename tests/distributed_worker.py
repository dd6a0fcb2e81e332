"""One worker of `tests/training/test_distribute.py`, or the only one: trains programs by `fit` after `lockstep.distribute`."""

import sys

import keras
import numpy as np
import tensorflow as tf

from tests import keras_programs

ROWS, BATCH, EPOCHS = 61, 20, 2
"""The last batch has one row, fewer than workers."""


def arrays(rows, model, **more):
    """Training on arrays, shuffled, with validation."""
    x, y, *weights = (tf.nest.map_structure(lambda array: array[:ROWS], part) for part in rows)
    held = tuple(tf.nest.map_structure(lambda array: array[100:131], part) for part in rows)
    weights = {"sample_weight": weights[0]} if weights else {}
    return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=held, verbose=0, **weights, **more)


def dataset(rows, model):
    """Training on a dataset, shuffled, some steps per execution."""
    some = tf.nest.map_structure(lambda array: array[:ROWS], rows)
    return model.fit(tf.data.Dataset.from_tensor_slices(some).shuffle(ROWS).batch(BATCH), epochs=EPOCHS, verbose=0)


def eagerly(rows, model):
    """Training without tracing."""
    model.run_eagerly = True
    return dataset(rows, model)


class Stop(keras.callbacks.Callback):
    """One worker wants to stop within an epoch; all do."""

    def on_train_batch_end(self, batch, logs=None):
        import lockstep

        if batch == 1 and lockstep.rank() == lockstep.workers() - 1:
            self.model.stop_training = True


def stopped(rows, model):
    """Training that ends early."""
    return arrays(rows, model, callbacks=[Stop()])


WAYS = {
    "row_weights": arrays,
    "two_inputs": arrays,
    "masked_mean_with_sample_weight": arrays,
    "accumulation": dataset,
    "adversarial": dataset,
    "sgd": eagerly,
    "nesterov": stopped,
}


def main():
    import lockstep

    out, arrays_written = sys.argv[1], {}
    for name, way in WAYS.items():
        model, rows = keras_programs.made(name, 131)
        if lockstep.rank():
            # The chief's weights replace these.
            model.set_weights([weight + 1 for weight in model.get_weights()])
        history = way(rows, lockstep.distribute(model)).history
        arrays_written |= {f"{name}/weights": keras_programs.weights(model), **{f"{name}/{key}": row for key, row in history.items()}}
    np.savez(out, **arrays_written)
    keras.backend.clear_session()


if __name__ == "__main__":
    main()
