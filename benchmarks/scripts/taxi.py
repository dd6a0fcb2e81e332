"""The taxi model of a run beside what is simpler; all trips, and cash and card apart.

Simpler are the majority class (of each kind of trips apart), a tip if and only if paid by card, and logistic regression.

    .venv/bin/python benchmarks/scripts/taxi.py --run NAME [--epoch N]

NAME is a run of `examples/taxi.py` on this control node, its best epoch by default. TAXI_TRIPS=FILE.csv as when it was trained. All
figures are those of the test trips, one in five, which no training sees; ECE is the expected calibration error. Whether a tip is recorded
depends on how it is paid, so a model that only knows the payment is already good on all trips together.
"""

import importlib
import sys

import keras
import numpy as np
import tensorflow as tf
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import rankdata

from benchmarks.shared import script
from control.common import project, text
from trainer.evaluation.measures import Calibration
from trainer.rundir.layout import snapshot_path
from trainer.rundir.schemas import read_history

GROUPS = {"all": None, "cash": "Cash", "card": "Credit Card"}
"""Kinds of trips, by what `payment_type` says of them."""


def main() -> None:
    """Train what is simpler, and print a table."""
    line = script.parser(__doc__)
    line.add_argument("--run", required=True)
    line.add_argument("--epoch", type=int, help="default: the one with the highest validation AUC")
    given = line.parse_args()
    folder = project.RUNS / given.run
    history = read_history(folder / "history.csv")
    if not history or "val_auc" not in history[0]:
        sys.exit(f"--run={given.run}: {folder} has no finished epoch of examples/taxi.py. Fix: the name of such a run")
    epoch = given.epoch or max(history, key=lambda row: row["val_auc"])["epoch"]
    if not snapshot_path(folder, epoch).is_file():
        sys.exit(f"--epoch={epoch}: {folder / 'checkpoints'} has no snapshot of it. Fix: one of those there, or leave it out for the best")
    sys.path.insert(0, str(project.ROOT / "examples"))
    taxi = importlib.import_module("taxi")
    (x, y), (test_x, test_y) = taxi.data("train"), taxi.data("test")
    model = keras.models.load_model(snapshot_path(folder, epoch), compile=False)
    probabilities = {
        "a tip if paid by card": is_paid(test_x, GROUPS["card"]).astype(float),
        "logistic regression": regression(x, y.ravel(), test_x),
        f"{given.run}, epoch {epoch}": np.ravel(model.predict(_as_tensors(test_x), batch_size=1024, verbose=0)),
    }
    rows = []
    for group, payment in GROUPS.items():
        chosen, share = is_paid(test_x, payment), float(y.ravel()[is_paid(x, payment)].mean())
        rivals = {"majority class": np.full(len(test_y), share), **probabilities}
        rows += [[group, name, int(chosen.sum()), *scores(test_y.ravel()[chosen], one[chosen])] for name, one in rivals.items()]
    print(text.table(["trips", "model", "number", "tip of a fifth", "AUC", "accuracy", "precision", "recall", "ECE"], rows))


def is_paid(x: dict[str, np.ndarray], payment: str | None) -> np.ndarray:
    """True for each trip that is paid so; None: all trips."""
    kinds = np.asarray(x["payment_type"])
    return np.ones(len(kinds), bool) if payment is None else kinds == payment


def regression(x: dict[str, np.ndarray], y: np.ndarray, test_x: dict[str, np.ndarray]) -> np.ndarray:
    """Predictions of logistic regression with a ridge penalty of 1: linear in the logarithms of the numbers, and in the one-hot rest."""
    rows, others = _design(x, x), _design(test_x, x)

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits, free = rows @ weights, np.append(weights[:-1], 0.0)
        return float(np.logaddexp(0, logits).sum() - logits @ y + free @ free / 2), rows.T @ (expit(logits) - y) + free

    return expit(others @ minimize(objective, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x)


def _design(x: dict[str, np.ndarray], known: dict[str, np.ndarray]) -> np.ndarray:
    """Numbers as logarithms, standardised as in `known`; a column for each of its payments and companies; ones for the intercept."""
    numbers = ("fare", "trip_miles", "trip_seconds")
    logs, base = (np.stack([np.log1p(one[name].astype(float).ravel()) for name in numbers], 1) for one in (x, known))
    kinds = [np.asarray(x[name])[:, None] == np.unique(known[name]) for name in ("payment_type", "company")]
    return np.concatenate([(logs - base.mean(0)) / base.std(0), *kinds, np.ones((len(logs), 1))], axis=1)


def _auc(positive: np.ndarray, probability: np.ndarray) -> float:
    """The share of pairs of a positive and a negative that are in order; half a pair where they are equal."""
    positives = positive.sum()
    return float((rankdata(probability)[positive].sum() - positives * (positives + 1) / 2) / (positives * (len(positive) - positives)))


def _as_tensors(x: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    """The columns as Keras takes them."""
    return {name: tf.constant(column.tolist()) if column.dtype.kind == "U" else tf.constant(column) for name, column in x.items()}


def scores(y: np.ndarray, probability: np.ndarray) -> list[text.Number | str]:
    """The share of positive trips, AUC, accuracy, precision, recall, calibration error; `-` for what is not defined."""
    positive, guess = y >= 0.5, probability >= 0.5
    calibration = Calibration()
    calibration.see(positive.astype(np.int64), probability)
    figures = [
        float(positive.mean()),
        _auc(positive, probability) if 0 < positive.mean() < 1 else None,
        (positive == guess).mean(),
        positive[guess].mean() if guess.any() else None,
        guess[positive].mean() if positive.any() else None,
        calibration.result()["calibration"]["error"],
    ]
    return ["-" if value is None else text.Number(float(value), 3) for value in figures]


if __name__ == "__main__":
    main()
