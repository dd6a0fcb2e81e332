"""The programs of `examples/`: two workers with uneven shares against Keras' own `fit`, and runs in two launches against runs in one."""

import csv
import importlib.util
import json
import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf

from control.datasets.publishing.publish import place_of
from tests.project import EXHAUSTIVE, ROOT
from trainer.data.manifest import load
from trainer.data.partition import EpochPlan
from trainer.data.spec import mapped

SEED, BATCH = 1, 32
EXAMPLES = {path.stem for path in (ROOT / "examples").glob("*.py")}
FOLLOW_FIT = {
    # name: options of its model without random draws, tolerance. Adam divides by the root of tiny second moments, which magnifies rounding.
    "regression": ({}, 1e-3),
    "text": ({"dropout": 0.0}, 2e-3),
    "addition": ({}, 1e-3),
    "forecast": ({}, 1e-3),
    "segmentation": ({}, 1e-3),
    "denoising": ({}, 1e-3),
    "siamese": ({}, 1e-3),
    "finetuning": ({"dropout": 0.0}, 1e-3),
    "taxi": ({}, 1e-3),
}
STEPS, FEW = 8, {"finetuning": 2}
"""Steps of one epoch that are compared; there are few digits."""
DRAW = {"classification", "gan", "vae", "text"}
"""They draw random numbers while they train, or normalise by a worker's part of the batch, so `fit` on one worker differs."""
FIRST = {"regression"}
"""The others are exhaustive."""


def each(names, first=FIRST):
    return [pytest.param(name, marks=() if name in first else EXHAUSTIVE) for name in sorted(names)]


def example(name):
    """An example's module, imported anew: Keras' registry of classes then has these."""
    specification = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def train(trainings, name, run, steps, *more, **options):
    settings = [f"train.steps={steps}", *(f"model.{key}={value}" for key, value in options.items())]
    settings = f"set={','.join(['train.batch_sizes=[20,12]', 'train.steps_per_call=2', 'telemetry.profile_every=0', *settings])}"
    example = ROOT / "examples" / f"{name}.py"
    return trainings.train(f"model={example}:build", f"dataset={example}:data", f"run={run}", settings, *more)


def taken(value, indices):
    """Examples of an array, as `fit` is given them: float64 as float32, different lengths padded with 0."""
    rows = value[indices]
    if rows.dtype == object:
        longest = max(map(len, rows))
        return np.array([np.pad(row, (0, longest - len(row))) for row in rows])
    # Of strings, Keras takes only tensors from a generator.
    return tf.constant(rows) if rows.dtype.kind == "U" else rows.astype(np.float32) if rows.dtype == np.float64 else rows


def numbered(data):
    """Classes as numbers, if `y` has their names."""
    x, *rest = data
    if rest and isinstance(rest[0], np.ndarray) and rest[0].dtype.kind == "U":
        rest[0] = np.unique(rest[0], return_inverse=True)[1].astype(np.int32)
    return x, *rest


def batches(trainings, run, data):
    """The whole batches that a run's two workers shared, from its own record."""
    cluster = json.loads((trainings.run(run) / "cluster.json").read_text())
    digest, counts = cluster["dataset"]["manifest"], cluster["counts"]
    order = load(place_of(trainings.root / "packs", digest)).order
    chosen = order[counts["validation_images"] : counts["validation_images"] + counts["train_images"]]
    plan = EpochPlan(counts["train_images"], counts["global_batch"], counts["steps_per_epoch"], SEED, 1)
    for step in range(counts["total_steps"]):
        indices = chosen[plan.union(step)]
        yield mapped(lambda array: taken(array, indices), data)  # noqa: B023 - called at once


def last_snapshot(trainings, run):
    return max((trainings.run(run) / "checkpoints").glob("epoch-*.keras"))


def test_every_example_is_trained_here():
    assert set(FOLLOW_FIT) | DRAW == EXAMPLES


def test_unusable_trips_of_a_file_are_counted(tmp_path, monkeypatch):
    taxi, file = example("taxi"), tmp_path / "trips.csv"
    monkeypatch.delenv("TAXI_TRIPS", raising=False)
    table = taxi.sample(60)
    # Exactly a fifth, and a cent less.
    table |= {"fare": np.full(60, "5.85"), "tips": np.where(np.arange(60) % 2, "1.17", "1.16")}
    table |= {"trip_miles": np.full(60, "1.5"), "trip_seconds": np.full(60, "300"), "company": np.full(60, 'Loop, "Inc."\n\x1b[2J')}
    flaws = {"fare": "0", "tips": "", "trip_miles": "-3", "trip_seconds": "inf"}
    for row, (name, flaw) in enumerate([*flaws.items(), ("trip_seconds", "soon"), ("trip_miles", "50.1")]):
        table[name] = np.array([flaw if number == row else cell for number, cell in enumerate(table[name])])
    monkeypatch.setenv("TAXI_TRIPS", str(file))
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([table, *zip(*table.values(), strict=True), ["too", "short"], [*range(30)]])
    reasons = "2 tips missing, 1 fare not above 0, 1 trip_miles not above 0, 1 trip_miles above 50, 2 trip_seconds missing"
    with pytest.warns(UserWarning, match=f"^7 of 62 trips are left out: {reasons}"):
        x, y = taxi.data("train")
    others, more = taxi.data("test")
    assert (len(y) + len(more), y.sum() + more.sum()) == (55, 28)
    assert set(x["company"]) | set(others["company"]) == {'Loop, "Inc."\n\x1b[2J', "14"}
    assert taxi.data("validation") is None
    rules = tmp_path / "rules.yml"
    monkeypatch.setenv("TAXI_SCHEMA", str(rules))
    own = (ROOT / "examples/taxi.yml").read_text()
    rules.write_text(own.replace("at_most: 0.5", "at_most: 0.1"))
    with pytest.raises(ValueError, match=r"^7 of 62 trips .*; more than unusable_at_most=0\.1 of the schema"):
        taxi.data("train")
    rules.write_text(own.replace("fare: {above: 0}", "fare: {above: 5.85}"))
    with pytest.raises(ValueError, match=r"62 of 62 trips are left out: 2 tips missing, 60 fare not above 5\.85"):
        taxi.data("train")
    rules.write_text(own.replace("above: 0}", "least: 0}"))
    with pytest.raises(ValueError, match=r"rules.yml has least, and may have numbers, texts, unusable_at_most, above, at_most"):
        taxi.data("train")
    rules.write_text(own.replace("  trip_miles: {above: 0, at_most: 50}\n", ""))
    with pytest.raises(ValueError, match=r"rules.yml lacks trip_miles, which the model needs"):
        taxi.data("train")
    monkeypatch.delenv("TAXI_SCHEMA")
    file.write_text("fare,tips\n1,2\n")
    with pytest.raises(ValueError, match=r"trips.csv has no column trip_miles, trip_seconds, payment_type, company; it needs tips, fare"):
        taxi.data("train")
    file.write_text(",".join(table) + "\n")
    with pytest.raises(ValueError, match=r"trips.csv has no rows"):
        taxi.data("train")


@pytest.mark.parametrize("name", each(FOLLOW_FIT))
def test_two_workers_train_as_fit_does(trainings, name):
    options, tolerance = FOLLOW_FIT[name]
    run, steps = f"fit-{name}", FEW.get(name, STEPS)
    train(trainings, name, run, steps, **options)
    summary = trainings.summary(run)
    assert (summary["state"], summary["steps"], summary["shares"]) == ("SUCCEEDED", steps, [20, 12])
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    module = example(name)
    keras.utils.set_random_seed(SEED)
    alone = module.build(**options)
    before = [weight.copy() for weight in alone.get_weights()]
    apply = alone.optimizer.apply
    # Of an embedding's sparse gradient, Keras' Adam squares each occurrence of a word, where the square of their sum is meant.
    alone.optimizer.apply = lambda gradients, variables: apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)
    fitted = alone.fit(batches(trainings, run, numbered(module.data("train"))), epochs=1, verbose=0)
    expected = alone.get_weights()
    alone.load_weights(last_snapshot(trainings, run))
    for first, mine, theirs in zip(before, alone.get_weights(), expected, strict=True):
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance * max(1e-2, abs(theirs - first).max()))
    (row,) = trainings.history(run)
    # Of several outputs, Keras counts one step too many in the loss of each in the first epoch; here they add up to the loss.
    metrics = {metric: values[-1] for metric, values in fitted.history.items() if not metric.endswith("_loss")}
    assert {metric: row[metric] for metric in metrics} == pytest.approx(metrics, rel=1e-3)


def test_each_output_has_its_own_errors(trainings):
    """An evaluation of the run that `fit` was compared with."""
    (evaluation,) = trainings.evaluate("fit-regression", 1)
    outputs = {output["name"]: output["errors"] for output in evaluation["outputs"]}
    metrics = {name: evaluation["metrics"][f"{name}_mae"] for name in ("minutes", "fare")}
    assert {name: errors["mean_absolute"] for name, errors in outputs.items()} == pytest.approx(metrics, rel=1e-4)
    assert [errors["values"] for errors in outputs.values()] == [1500, 1500]


@pytest.mark.parametrize("name", each(EXAMPLES - (set(FOLLOW_FIT) - DRAW), ()))
def test_two_launches_give_the_weights_of_one(trainings, name):
    train(trainings, name, f"whole-{name}", 6)
    train(trainings, name, f"halves-{name}", 3)
    train(trainings, name, f"halves-{name}", 6)
    whole, halves = trainings.summary(f"whole-{name}"), trainings.summary(f"halves-{name}")
    assert len(set(whole["weights_sha256_by_rank"])) == 1
    assert halves["restarts"] == 1
    assert halves["weights_sha256"] == whole["weights_sha256"]
    assert trainings.history(f"halves-{name}")[-1] | {"seconds": 0, "images_per_s": 0} == pytest.approx(
        trainings.history(f"whole-{name}")[-1] | {"seconds": 0, "images_per_s": 0}
    )


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("number", "shown", "metric", "least"), [(1, "most often taken for", "accuracy", 0.9), (2, "own-2 on its test examples", "mae", 0.0)]
)
def test_programs_of_the_page_train_as_printed(number, shown, metric, least, project):
    page = (ROOT / "docs/how-to/models.md").read_text(encoding="utf-8").replace("\\\n", "")
    code, after = page.split("```python\n")[number].split("```")[:2]
    run = f"own-{number}"
    (project.root / "mine.py").write_text(code)
    commands = [line.strip() for line in after.split("\n\n")[1 if number == 2 else 2].splitlines()]
    assert len(commands) == 2
    for command in commands:
        _, playbook, *words = shlex.split(command.replace("run=mine", f"run={run}"))
        done = project.play(playbook.removesuffix(".yml"), *(word for word in words if word != "-e"))
    assert shown in done.stdout
    with (project.run(run) / "evaluations.csv").open() as stream:
        assert least < float(next(csv.DictReader(stream))[metric]) < 1.5
