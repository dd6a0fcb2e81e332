"""Plain Keras: `compile` and `fit`, one worker.

Variant `loop`: CHUNK steps per execution (`steps_per_execution`), which Keras' documentation recommends for speed.
"""

from typing import Any

import common
import numpy as np
import tensorflow_model


def main() -> None:
    """Train and time."""
    given = common.Task.parse()
    meeting = common.Meeting(given)
    tensorflow_model.set_threads(given.threads)
    import keras

    model = tensorflow_model.build(keras)
    model.compile(
        optimizer=keras.optimizers.SGD(common.LEARNING_RATE, momentum=common.MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution={"": 1, "loop": common.CHUNK}[given.variant],
    )
    versions = common.versions(*tensorflow_model.VERSIONS)
    settings = {"jit_compile": bool(model.jit_compile), "steps_per_execution": model.steps_per_execution}
    trained = common.Trained(lambda _: 0.0, lambda: tensorflow_model.weights(model), versions, settings)
    clock = common.Clock(given, meeting)
    repeated = 2 + (given.warm_up + given.steps) // common.CHUNK
    images, labels = (np.concatenate([*values] * repeated) for values in common.images(given.rank, given.batch))
    model.fit(images, labels, batch_size=given.batch, shuffle=False, verbose=0, callbacks=[watching(keras.callbacks.Callback, clock)])
    clock.write(trained)
    meeting.end()


def watching(kind: type, clock: common.Clock) -> Any:
    """A callback that consults the clock after every CHUNK steps and ends the training when the clock says so."""

    class Watch(kind):
        """Keras passes the number of the last finished step."""

        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            if (batch + 1) % common.CHUNK == 0 and not clock.goes_on(float(logs["loss"] if logs else 0.0)):
                self.model.stop_training = True

    return Watch()


if __name__ == "__main__":
    main()
