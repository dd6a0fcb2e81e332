"""A script that also runs alone: one line makes its `fit` that of all workers."""

import os
import sys
from pathlib import Path

import keras
import lockstep
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
y = np.tanh(x @ np.arange(18).reshape(6, 3)).astype(np.float32)

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, activation="relu"), keras.layers.Dense(3)])
model.compile(optimizer=keras.optimizers.Adam(float(sys.argv[1])), loss="mse", metrics=["mae"])
lockstep.distribute(model)

folder = Path(os.environ.get("LOCKSTEP_OUTPUT", "."))
best = keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True)
log = keras.callbacks.CSVLogger(folder / "log.csv")
history = model.fit(x, y, batch_size=16, epochs=4, validation_split=0.2, callbacks=[best, log])
np.savez(folder / "result.npz", *model.get_weights(), **history.history)
