"""Tabular classification, wide and deep: whether the tip of a taxi trip in Chicago is at least a fifth of the fare.

    ansible-playbook train.yml -e model=examples/taxi.py:build -e dataset=examples/taxi.py:data -e run=taxi \
      -e evaluate=true -e epochs=10 -e set=train.batch_size=64,train.monitor=val_auc

Expected after 10 epochs on two workers, on the test examples: AUC 0.941, accuracy 0.88 (always no: 0.80); 49 s.

The trips are made up. TAXI_TRIPS=FILE.csv before that command takes real ones: City of Chicago's open data with the columns of `sample`,
as in TFX's repository, `examples/chicago_taxi_pipeline/data/simple/data.csv` (15,002 trips). `taxi.yml` says which of them are used;
TAXI_SCHEMA=FILE.yml takes another such file.
"""

import csv
import os
import warnings
from pathlib import Path

import keras
import numpy as np
from keras import layers

PAYMENTS = ("Cash", "Credit Card", "No Charge", "Unknown", "Dispute", "Pcard", "Prcard")
COMPANIES = ("Lakeside Taxi", "Prairie Cab Association", "Loop & River Cabs, Inc.", "Windy City Dispatch", "0118 - A Driver of His Own")
KEYS = ("numbers", "texts", "unusable_at_most", "above", "at_most")
"""Allowed keys of a schema and of its limits."""
SPREAD = {"fare": (2.4, 0.32), "trip_miles": (1.13, 0.62), "trip_seconds": (6.44, 0.52)}
"""Mean and variance of log(1 + x). Every host builds the model, and not every host has the table, so nothing is adapted to it."""


@keras.saving.register_keras_serializable("examples")
class WideAndDeep(keras.optimizers.Adam):
    """Adam for the deep part, FTRL for the wide one, whose weights are named so (Cheng et al. 2016, arXiv:1606.07792)."""

    def __init__(self, learning_rate=0.002, wide_rate=0.1, **options):
        super().__init__(learning_rate, **options)
        self.wide_rate, self.wide = wide_rate, keras.optimizers.Ftrl(wide_rate)

    def build(self, variables):
        """Give each variable to one of the two."""
        if not self.built:
            own = [variable for variable in variables if "wide" in variable.path]
            self.wide.build(own)
            self.wide_keys = {self._var_key(variable) for variable in own}
        super().build(variables)

    @property
    def variables(self):
        """Variables of both optimizers, which a training state holds."""
        return [*super().variables, *self.wide.variables]

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable."""
        if self._var_key(variable) in self.wide_keys:
            self.wide.update_step(gradient, variable, self.wide.learning_rate)
        else:
            super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        """Constructor arguments from which Keras rebuilds the optimizer of a snapshot."""
        return {**super().get_config(), "wide_rate": self.wide_rate}


def build(width=128, shrink=0.5, depth=3, learning_rate=2e-3, wide_rate=0.1):
    """A linear part on bins and their cross, a deep part on numbers and embeddings; their sum is the logit of the probability."""
    inputs = {name: keras.Input((), name=name) for name in SPREAD}
    inputs |= {name: keras.Input((), dtype="string", name=name) for name in ("payment_type", "company")}
    miles = layers.Discretization(list(range(5, 55, 5)))(inputs["trip_miles"])
    seconds = layers.Discretization([900, 1800, 2700, 3600])(inputs["trip_seconds"])
    crossed = layers.HashedCrossing(10_000)((miles, seconds))
    # One weight for each bin: linear in their one-hot vectors, which are never made.
    bins = {"wide_miles": (11, miles), "wide_seconds": (5, seconds), "wide_crossed": (10_000, crossed)}
    wide = [layers.Embedding(count, 1, "zeros", name=name)(column) for name, (count, column) in bins.items()]
    scaled = [layers.Normalization(None, *SPREAD[name])(keras.ops.log1p(inputs[name])) for name in SPREAD]
    payment = layers.StringLookup(vocabulary=PAYMENTS)(inputs["payment_type"])
    company = layers.Hashing(100, mask_value="")(inputs["company"])
    embedded = [layers.Embedding(len(PAYMENTS) + 1, 3)(payment), layers.Embedding(100, 10)(company)]
    deep = layers.Concatenate()([*(layers.Reshape((1,))(number) for number in scaled), *embedded])
    for number in range(depth):
        deep = layers.Dense(max(2, int(width * shrink**number)), activation="relu")(deep)
    probability = layers.Activation("sigmoid")(layers.Add()([*wide, layers.Dense(1)(deep)]))
    model = keras.Model(inputs, probability)
    model.compile(
        optimizer=WideAndDeep(keras.optimizers.schedules.ExponentialDecay(learning_rate, 100, 0.9), wide_rate),
        loss="binary_crossentropy",
        metrics=[
            keras.metrics.AUC(name="auc"),
            "accuracy",
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
        ],
    )
    return model


def data(split):
    """Columns of the usable trips, and whether the tip is a fifth of the fare or more; one trip in five is for the test."""
    if split == "validation":
        return None
    rules = schema(os.environ.get("TAXI_SCHEMA") or Path(__file__).with_name("taxi.yml"))
    path = os.environ.get("TAXI_TRIPS")
    table = checked(read(path) if path else sample(), rules, path or "the sample")
    numbers = {name: np.array([number(cell) for cell in table[name]]) for name in rules["numbers"]}
    kept, left_out = usable(numbers, rules["numbers"])
    summary = f"{len(kept) - kept.sum():,} of {len(kept):,} trips are left out: {', '.join(left_out)}"
    if len(kept) - kept.sum() > rules["unusable_at_most"] * len(kept):
        raise ValueError(f"{summary}; more than unusable_at_most={rules['unusable_at_most']} of the schema. Fix the table, or the schema")
    if left_out and split == "train":
        warnings.warn(summary, stacklevel=2)
    kept &= (np.random.default_rng(0).random(len(kept)) < 0.2) == (split == "test")
    x = {name: numbers[name][kept] for name in SPREAD} | {name: table[name][kept] for name in ("payment_type", "company")}
    # In whole cents: 1.17 / 5.85 is a little less than 0.2.
    cents = {name: np.round(100 * numbers[name][kept]) for name in ("tips", "fare")}
    return x, (5 * cents["tips"] >= cents["fare"]).astype("float32")[:, np.newaxis]


def schema(path):
    """The rules of a schema file such as `taxi.yml`; ValueError for a key that it does not have, or a column that the model needs."""
    import yaml

    with open(path, encoding="utf-8") as stream:
        rules = yaml.safe_load(stream)
    numbers, texts = rules["numbers"], rules["texts"]
    unknown = [key for limits in (*numbers.values(), dict.fromkeys(rules)) for key in limits if key not in KEYS]
    missing = {"tips", *SPREAD} - set(numbers) | {"payment_type", "company"} - set(texts)
    if unknown:
        raise ValueError(f"{path} has {unknown[0]}, and may have {', '.join(KEYS)}")
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}, which the model needs")
    return rules


def usable(numbers, rules):
    """Mask of the usable trips, and counts of the unusable ones, each under its first reason."""
    reasons = {}
    for name, limits in rules.items():
        above, at_most = limits.get("above", -np.inf), limits.get("at_most", np.inf)
        reasons |= {f"{name} missing": np.isnan(numbers[name]), f"{name} not above {above:,}": numbers[name] <= above}
        reasons |= {f"{name} above {at_most:,}": numbers[name] > at_most}
    kept, counted = np.ones(len(numbers["tips"]), bool), []
    for reason, unusable in reasons.items():
        if count := (kept & unusable).sum():
            counted.append(f"{count:,} {reason}")
        kept &= ~unusable
    return kept, counted


def number(cell):
    """A cell's number; NaN if it is empty, or no finite number."""
    try:
        value = float(cell)
    except ValueError:
        return np.nan
    return value if np.isfinite(value) else np.nan


def read(path):
    """The columns of a CSV file, as text."""
    with open(path, encoding="utf-8", errors="replace", newline="") as stream:
        reader = csv.DictReader(stream, restval="")
        rows = list(reader)
    return {name: np.array([row[name] for row in rows], str) for name in reader.fieldnames or []}


def checked(table, rules, called):
    """A table that has the columns of a schema, and a row."""
    needed = (*rules["numbers"], *rules["texts"])
    if missing := [name for name in needed if name not in table]:
        raise ValueError(f"{called} has no column {', '.join(missing)}; it needs {', '.join(needed)}")
    if not len(table["tips"]):
        raise ValueError(f"{called} has no rows")
    return table


def sample(count=10_000):
    """A made-up table, as text, with all columns of the real one and its flaws: empty cells, numbers that are 0 or too large."""
    random = np.random.default_rng(7)
    miles = np.round(random.lognormal(0.5, 1.2, count), 2)
    seconds = 60 * np.round((3 + 4 * miles**0.7) * random.lognormal(0, 0.3, count)).astype(int)
    fare = np.round(3.25 + 1.8 * miles + seconds / 200, 2)
    payment = random.choice(PAYMENTS, count, p=(0.66, 0.325, *[0.003] * 5))
    # By card, a coin or two on a short trip, a part of the fare on a longer one. Other tips are not recorded.
    part = random.choice((0, 0.15, 0.2, 0.25, 0.3), count, p=(0.06, 0.14, 0.35, 0.3, 0.15)) * fare
    tips = np.where(random.random(count) < 0.8 * np.exp(-fare / 30), random.choice((1, 2, 2, 3), count), np.round(part, 2))
    start = random.integers(1_356_998_400, 1_483_228_800, count) // 900 * 900
    areas = random.integers(1, 78, (2, count))

    def cells(values, empty=0.0, nothing=0.0):
        """The values as text, of which a share is empty, and another share 0."""
        drawn = random.random(count)
        return np.where(drawn < empty, "", np.where(drawn > 1 - nothing, "0", np.asarray(values).astype(str)))

    return {
        "pickup_community_area": cells(areas[0], 0.001),
        "fare": cells(fare, nothing=0.002),
        "trip_start_month": cells(start.astype("datetime64[s]").astype("datetime64[M]").astype(int) % 12 + 1),
        "trip_start_hour": cells(start // 3600 % 24),
        "trip_start_day": cells((start // 86_400 + 4) % 7 + 1),
        "trip_start_timestamp": cells(start),
        "pickup_latitude": cells(41.65 + areas[0] / 200, 0.001),
        "pickup_longitude": cells(-87.9 + areas[0] / 200, 0.001),
        "dropoff_latitude": cells(41.65 + areas[1] / 200, 0.03),
        "dropoff_longitude": cells(-87.9 + areas[1] / 200, 0.03),
        "trip_miles": cells(miles, nothing=0.27),
        "pickup_census_tract": cells(17_031_000_000 + areas[0], 0.999),
        "dropoff_census_tract": cells(17_031_000_000 + areas[1], 0.28),
        "payment_type": payment,
        "company": cells(random.choice(COMPANIES, count, p=(0.5, 0.25, 0.15, 0.09, 0.01)), 0.34),
        "trip_seconds": cells(seconds, 0.002, 0.03),
        "dropoff_community_area": cells(areas[1], 0.03),
        "tips": cells(np.where(payment == "Credit Card", tips, 0.0)),
    }
