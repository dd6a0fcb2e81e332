"""Made run directories, as train.yml and evaluate.yml leave them, to write reports of."""

import csv
import json
import zipfile

import yaml

from control.runs.results.evaluation_table import EvaluationTable
from tests.unit.samples import HISTORY
from trainer.worker.telemetry import PHASES

# Loss, accuracy, validation loss, validation accuracy of five epochs that overfit after the third.
OVERFITTING = [(2.0, 0.30, 1.9, 0.35), (1.5, 0.45, 1.6, 0.44), (1.2, 0.55, 1.4, 0.51), (1.0, 0.63, 1.5, 0.50), (0.8, 0.72, 1.61, 0.48)]
HOST = {"python": "3.11.7", "machine": "aarch64", "cpu": "Cortex-A72", "cores": 4, "threads": 4}
PACKAGES = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6", "pillow": "13.0.0"}
SUMMARY = {"state": "SUCCEEDED", "restarts": 0, "seconds_total": 75.4, "seconds_training": 61.2, "images_per_s": 2298.0}


def hosts(names, address="10.1.0."):
    return [
        {"rank": rank, "name": name, "address": f"{address}{rank + 1}", "port": 12345, **HOST, "packages": PACKAGES}
        for rank, name in enumerate(names)
    ]


def make_run(
    runs, name, rows=OVERFITTING, names=("node01", "node02"), address="10.1.0.", model="task_cnn", parameters=3688714, tests=None, **others
):
    """Write a run directory; `tests`: epoch -> test accuracy; `others`: changes to summary.json, or `cluster` and `config` to those."""
    folder = runs / name
    (folder / "checkpoints").mkdir(parents=True)
    write_history(folder / "history.csv", rows)
    workers, batch = len(names), 64 * len(names)
    steps = -(-4000 // batch)
    counts = {"workers": workers, "train_images": 4000, "validation_images": 1000, "global_batch": batch, "steps_per_epoch": steps}
    cluster = {
        "run": name,
        "created_at": "2026-11-21T05:26:16+00:00",
        "revision": "89ef59ecae6f",
        "dataset": {"name": "pets", "classes": ["cat", "dog"], "train": 5000, "test": 2000, "digest": "348271d54f5dbcaf" * 4},
        "code": "trainer-a95c9b7542a78a4c.zip",
        "counts": {**counts, "epochs": len(rows), "total_steps": len(rows) * steps},
        "parameters": {"total": parameters, "trainable": parameters},
        "hosts": hosts(names, address),
        **others.pop("cluster", {}),
    }
    config = {
        "seed": 1,
        "model": {"name": model},
        "data": {"source": "folder", "path": "/data/pets", "image_size": [32, 32, 3]},
        "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0},
        "schedule": {"scaling": "none", "warmup_epochs": 0.0, "decay": []},
        "reduction": {"name": "packed"},
        **others.pop("config", {}),
    }
    weights = {"weights_sha256_by_rank": ["8c1d431dde07dfef" * 4] * workers}
    done = {"workers": workers, "epochs_done": len(rows), "epochs": len(rows), "steps": len(rows) * steps}
    (folder / "cluster.json").write_text(json.dumps(cluster))
    (folder / "config.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "summary.json").write_text(json.dumps({**SUMMARY, **done, **weights, **others}))
    for epoch in range(1, len(rows) + 1):
        (folder / f"checkpoints/epoch-{epoch:04d}.keras").write_bytes(f"weights of epoch {epoch}".encode() * 50)
    for split in ("train", "validation"):
        (folder / "logs" / split).mkdir(parents=True)
        (folder / "logs" / split / "events.out.tfevents.1.host.1").write_bytes(b"events")
    if tests is not None:
        write_tests(folder, tests)
    return folder


def write_history(path, rows):
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HISTORY)
        writer.writerows((epoch, *row, 0.01, 18.4, 2168.2) for epoch, row in enumerate(rows, 1))


def write_tests(folder, tests, images=2000):
    actual = [
        {"epoch": epoch, "split": "test", "metrics": {"loss": 2 - accuracy, "accuracy": accuracy}, "images": images, "seconds": 0.8}
        for epoch, accuracy in tests.items()
    ]
    EvaluationTable(folder / "evaluations.csv").append([{**row, "evaluated_at": "2026-11-21T05:29:37+00:00"} for row in actual])


def write_split(folder, host, milliseconds, samples=3):
    """Records of profiled steps: the phases in order, in milliseconds."""
    (folder / "workers" / host).mkdir(parents=True)
    record = {"t": 1.0, "kind": "split", "epoch": 1, "step": 200, "step_seconds": sum(milliseconds) / 1000, "images": 64}
    record |= {phase: value / 1000 for phase, value in zip(PHASES, milliseconds, strict=True)}
    (folder / "workers" / host / "metrics.jsonl").write_text((json.dumps(record) + "\n") * samples)


def make_sweep(
    sweeps, name, analysis="# Sweep\n\nUse 3 workers.\n\n## Times\n\n![Times](time_median.png)\n", pictures=("time_median.png",)
):
    folder = sweeps / name
    folder.mkdir(parents=True)
    if analysis is not None:
        (folder / "analysis.md").write_text(analysis)
    for picture in pictures:
        (folder / picture).write_bytes(b"\x89PNG " + picture.encode())
    (folder / "timings.csv").write_text("workers\n")
    return folder


def make_archive(folder, name="trainer-a95c9b7542a78a4c.zip", text="used = True\n"):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("trainer/__init__.py", "")
        archive.writestr("trainer/worker/loop.py", text)
    return folder / name


def make_project(root, templates):
    """A small project: templates of the real one, a little code."""
    files = {"train.yml": "---\n", "playbooks/stages/plan.yml": "---\n", "trainer/worker/loop.py": "used = False\n", "LICENSE": "Apache"}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "templates").mkdir()
    for template in templates.glob("report.*.j2"):
        (root / "templates" / template.name).write_text(template.read_text())
    return root
