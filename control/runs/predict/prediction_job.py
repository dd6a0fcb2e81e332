"""Preparation of a prediction on the control node, before any host is touched: the model's outputs and the examples. Needs TensorFlow."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from control.datasets.listing.specs import DTYPES
from control.datasets.publishing import new_examples
from control.datasets.publishing.new_examples import Parts
from control.runs.planning import model_errors
from control.runs.predict import trained_model
from trainer.common.errors import ConfigError
from trainer.data.spec import STRING
from trainer.evaluation import predict
from trainer.evaluation.measures import Classes
from trainer.models import user_model

MOST_COLUMNS = 10_000
"""Most columns of all outputs together."""
NOTED = 64 * predict.BLOCK
"""Rows between two lines of progress."""


def prepare(run: str, given: str, called: str, hosts: int, into: str) -> dict[str, Any]:
    """Read the examples, divide them over hosts, build the model.

    Args:
        run: run directory on the control node.
        given: path of the examples, a dataset's name, or `FILE.py:FUNCTION`.
        called: the input as the user typed it.
        hosts: number of hosts that predict.
        into: an empty folder, in which each host gets a folder named by its number.

    Returns:
        `rows` per host; `outputs`, each with name, dtype, shape and `goal`: `threshold` and `count` if it is a class;
        `images`: whether examples have names; `warnings`.

    Raises:
        LockstepError: the model can't be built, its outputs can't be written, or it does not accept an example.
    """
    trained = trained_model.Trained.of(Path(run))
    spec, model = trained.spec, trained.config.model
    parts = Parts(Path(into), spec.inputs, hosts)
    noted = [0]

    def progress(count: int) -> None:
        if count // NOTED > noted[0]:
            noted[0] = count // NOTED
            print(f"{count:,} examples", flush=True)

    try:
        warnings = new_examples.write_examples(given, called, spec, trained.image_size, parts, progress)
    finally:
        rows = parts.close()
    # Importing TensorFlow takes longer than finding most mistakes in the input.
    with model_errors.explaining("prediction", model) if model["name"] == user_model.NAME else contextlib.nullcontext():
        predictor = trained.predictor()
    _check_outputs(predictor)
    parts.write_jobs(spec, len(trained.classes))
    return {
        "rows": rows,
        "outputs": [
            {**dataclasses.asdict(leaf), "goal": dataclasses.asdict(goal) if isinstance(goal, Classes) else None}
            for leaf, goal in zip(predictor.outputs, predictor.goals, strict=True)
        ],
        "images": trained.image_size is not None,
        "warnings": warnings,
    }


def _check_outputs(predictor: predict.Predictor) -> None:
    """Refuse outputs that a table can't hold."""
    columns = 0
    for leaf in predictor.outputs:
        if leaf.dtype not in DTYPES or leaf.dtype == STRING:
            raise ConfigError(f"the model's output {leaf.name} is {leaf.dtype}; predict.yml writes numbers only")
        if leaf.varies:
            raise ConfigError(
                f"the model's output {leaf} has a shape that varies between examples; a table needs the same columns in each row"
            )
        columns += trained_model.values_of(leaf)
    if columns > MOST_COLUMNS:
        raise ConfigError(
            f"the model gives {columns:,} numbers per example, each a column; at most {MOST_COLUMNS:,}. Fix: predict in a script "
            "(docs/how-to/scripts.md) with the snapshot from runs/<run>/checkpoints"
        )
