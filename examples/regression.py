"""Tabular regression: duration and fare of made taxi trips, from columns of numbers and strings.

    ansible-playbook train.yml -e model=examples/regression.py:build -e dataset=examples/regression.py:data -e run=regression \
      -e evaluate=true -e epochs=15 -e set=train.batch_size=64

Expected after 15 epochs on two workers, on the test examples: MAE of 0.70 minutes and 0.33 dollars (always the median: 5.9, 6.2); 20 s.

Two outputs, each with its own loss and weight.
"""

import keras
import numpy as np
from keras import layers

PAYMENTS = ("app", "card", "cash")


def build(width=48, learning_rate=5e-3):
    """Normalised miles, one-hot hours and strings, two shared layers, two outputs."""
    columns, _ = data("train")
    inputs = {name: keras.Input((), dtype="string" if name == "payment" else "float32", name=name) for name in columns}
    scale = layers.Normalization(axis=None)
    scale.adapt(columns["miles"])
    encoded = [
        layers.Reshape((1,))(scale(inputs["miles"])),
        layers.Discretization(list(range(1, 24)), output_mode="one_hot")(inputs["hour"]),
        layers.StringLookup(vocabulary=PAYMENTS, output_mode="one_hot")(inputs["payment"]),
    ]
    x = layers.Concatenate()(encoded)
    for _ in range(2):
        x = layers.Dense(width, activation="relu")(x)
    model = keras.Model(inputs, {"minutes": layers.Dense(1, name="minutes")(x), "fare": layers.Dense(1, name="fare")(x)})
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss={"minutes": "huber", "fare": "mse"},
        loss_weights={"minutes": 1.0, "fare": 0.2},
        metrics={"minutes": ["mae"], "fare": ["mae", keras.metrics.R2Score(name="r2")]},
    )
    return model


def data(split):
    """Trips: it is slow at rush hour, the fare follows from miles and minutes, and who pays by app tips."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    count = 6000 if split == "train" else 1500
    miles, hour = random.gamma(2, 2, count), random.uniform(0, 24, count)
    payment = random.choice(PAYMENTS, count)
    rush = np.exp(-(((hour - 8) / 1.5) ** 2)) + np.exp(-(((hour - 17.5) / 2) ** 2))
    minutes = 3 + miles * (2 + 2.5 * rush) * random.lognormal(0, 0.05, count)
    fare = 3.25 + 2.25 * miles + 0.2 * minutes
    fare = fare * (1 + 0.2 * (payment == "app")) + random.normal(0, 0.2, count)
    return {"miles": miles, "hour": hour, "payment": payment}, {"minutes": minutes[:, np.newaxis], "fare": fare[:, np.newaxis]}
