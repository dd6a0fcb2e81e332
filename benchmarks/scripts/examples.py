"""Every example by plain Keras `fit` on one host, and by `train.yml` on 2 and 5, with the same global batch and three seeds.

    .venv/bin/python benchmarks/scripts/examples.py [--seeds 3] [--only NAME,NAME] -i inventory/lab [-e workers' variables]

`fit` runs on the first host, as a script (`-e script=`), on as many rows. Each example has the epochs and the batch of its own head; the
metric is that on the test examples (of `gan.py`, which has no loss, that of training). Rows are added to `.lockstep/examples.csv`, and
what is there is not measured again.
"""

import csv
import json
import shlex
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from benchmarks.scripts.launch_time import delete, play
from benchmarks.shared import epochs, script
from benchmarks.shared.script import ROOT
from control.common import text
from trainer.rundir.schemas import read_history

FILE = ROOT / ".lockstep" / "examples.csv"
METRICS = {
    "segmentation": "mean_iou",
    "denoising": "rmse",
    "text": "accuracy",
    "addition": "accuracy",
    "forecast": "mae",
    "regression": "minutes_mae",
    "classification": "auc",
    "taxi": "auc",
    "vae": "squared_error",
    "gan": "near",
    "siamese": "accuracy",
    "finetuning": "accuracy",
}
"""The metric of each example."""
WORKERS = (1, 2, 5)
"""1: plain `fit`."""


class Row(NamedTuple):
    """One training: its metric on the test examples, and examples/s in training steps."""

    example: str
    workers: int
    seed: int
    metric: float
    examples_per_s: float


def main() -> None:
    """Measure what is missing, record and print."""
    line = script.parser(__doc__, seeds=3)
    line.add_argument("--only", type=lambda names: names.split(","), default=list(METRICS), help="names of examples, separated by commas")
    arguments, more = line.parse_known_args()
    rows = script.recorded(FILE, Row)
    for seed in range(1, arguments.seeds + 1):
        for name in arguments.only:
            for workers in WORKERS:
                if not any((row.example, row.workers, row.seed) == (name, workers, seed) for row in rows):
                    rows.append(trained(name, workers, seed, more))
                    script.record(FILE, rows)
                    print(f"{name}, {text.count(workers, 'worker')}, seed {seed}: {rows[-1].metric:.4g}", flush=True)
    print(table(rows))


class Stage(NamedTuple):
    """One of the trainings of an example, as its head has it; most have one, fine-tuning several."""

    given: dict[str, str]
    """The command's variables."""
    settings: dict[str, str]
    """Settings of `set=`, without the batch."""
    batch: int
    """Examples per step on two workers."""

    def options(self) -> dict[str, object]:
        """Options that the command gives to `build`."""
        return {key.removeprefix("model."): yaml.safe_load(value) for key, value in self.settings.items() if key.startswith("model.")}


def stages(name: str) -> list[Stage]:
    """The trainings in an example's head, in order: each `train.yml`."""
    head = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").split('"""')[1].replace("\\\n", " ")
    return [_stage(shlex.split(line)) for line in head.splitlines() if line.strip().startswith("ansible-playbook train.yml ")]


def _stage(words: Sequence[str]) -> Stage:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    settings = dict(pair.split("=", 1) for pair in given.pop("set").split(","))
    return Stage(given, settings, 2 * int(settings.pop("train.batch_size")))


def trained(name: str, workers: int, seed: int, more: list[str]) -> Row:
    """The trainings of an example; their runs are then deleted."""
    runs = [_run(stage.given["run"], workers) for stage in stages(name)]
    for run in runs:
        delete(ROOT, run, more)
    metric, rate = fitted(runs[-1], name, seed, more) if workers == 1 else distributed(name, workers, seed, more)
    for run in runs[-1:] if workers == 1 else runs:
        delete(ROOT, run, more)
    return Row(name, workers, seed, metric, rate)


def _run(own: str, workers: int) -> str:
    return f"example-{own}-{workers}"


def fitted(run: str, name: str, seed: int, more: list[str]) -> tuple[float, float]:
    """Metric and examples/s of `fit` on the first host."""
    asked = [
        {
            "data": stage.given["dataset"].rpartition(":")[2],
            "options": stage.options(),
            "epochs": int(stage.given["epochs"]),
            "batch": stage.batch,
            "skip_mismatch": stage.settings.get("train.skip_mismatch") == "true",
        }
        for stage in stages(name)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for file in (ROOT / "examples" / f"{name}.py", ROOT / "benchmarks" / "fit" / "main.py"):
            shutil.copy(file, folder)
        args = shlex.join([name, str(seed), json.dumps(asked)])
        play(ROOT, "train.yml", run, [*more, "-e", json.dumps({"script": folder, "args": args, "workers": 1})])
    result = json.loads((ROOT / "runs" / run / "output" / "result.json").read_text(encoding="utf-8"))
    return result["metrics"][METRICS[name]], result["examples_per_s"]


def distributed(name: str, workers: int, seed: int, more: list[str]) -> tuple[float, float]:
    """Metric and examples/s of `train.yml`."""
    for stage in stages(name):
        settings = {**stage.settings, "train.global_batch": str(stage.batch), "seed": str(seed)}
        given = {name: value for name, value in stage.given.items() if name != "run"}
        asked = {**given, "workers": workers, "set": ",".join(f"{key}={value}" for key, value in settings.items())}
        run = _run(stage.given["run"], workers)
        if "weights" in asked:
            _, other, *rest = stage.given["weights"].split("/")
            asked["weights"] = "/".join(["runs", _run(other, workers), *rest])
        play(ROOT, "train.yml", run, [*more, "-e", json.dumps(asked)])
    folder = ROOT / "runs" / run
    if "evaluate" in asked:
        with (folder / "evaluations.csv").open(encoding="utf-8", newline="") as stream:
            metric = float(list(csv.DictReader(stream))[-1][METRICS[name]])
    else:
        metric = read_history(folder / "history.csv")[-1][METRICS[name]]
    return metric, epochs.images_per_s(epochs.timed(folder))


def table(rows: Sequence[Row]) -> str:
    """Per example and number of workers: the metric's median over the seeds with its range, and examples/s."""
    lines = []
    for name, metric in METRICS.items():
        for workers in WORKERS:
            group = [row for row in rows if (row.example, row.workers) == (name, workers)]
            if group:
                values = [row.metric for row in group]
                rate = statistics.median(row.examples_per_s for row in group)
                spread = f"{min(values):.4g} to {max(values):.4g}"
                way = "fit" if workers == 1 else text.count(workers, "worker")
                lines.append([name, metric, way, len(group), f"{statistics.median(values):.4g}", spread, text.Number(rate, 0)])
    return text.table(["example", "metric", "by", "seeds", "median", "lowest to highest", "examples/s"], lines)


if __name__ == "__main__":
    main()
