"""Run directories as `train.yml` leaves them, without training: what was planned is real, what came of it is made up."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

from control.common.plan import Plan
from control.remote.published import Published
from control.runs.launch import launches
from tests.commands import ROOT, Commands
from tests.unit.report_samples import HOST, OVERFITTING, PACKAGES, SUMMARY, write_history
from trainer.common.plain_values import from_plain, to_plain
from trainer.rundir.launch_record import Host

COMPILED, SEQUENCES = (ROOT / "tests/training" / name for name in ("compiled.py", "sequences.py"))
UNEVEN = "set=train.batch_sizes=[20,12],train.steps_per_call=2,telemetry.profile_every=0"


def launch(commands: Commands, name: str, *arguments: str) -> Path:
    """A run directory as at the launch of `train.yml`, its dataset published."""
    facts = commands.run_here("train", f"run={name}", *arguments, "preflight=false").facts
    plan, published = from_plain(Plan, facts["plan"]), from_plain(Published, facts["published"])
    hosts = [from_plain(Host, {"rank": rank, **to_plain(host), **HOST, "packages": PACKAGES}) for rank, host in enumerate(plan.hosts)]
    plan = replace(plan, hosts=hosts)
    more = {"script": plan.script} if plan.script else {}
    launches.write_launch(commands.run(name), plan, launches.record(plan, published, **more))
    return commands.run(name)


def succeed(run: Path, **more: object) -> Path:
    """Its end: all steps are done, or the script has ended well."""
    cluster = json.loads((run / "cluster.json").read_text())
    counts, workers = cluster["counts"], len(cluster["hosts"])
    summary: dict[str, object] = {"state": "SUCCEEDED", "workers": workers, "restarts": 0, "seconds_total": 1.5}
    if "script" in cluster:
        summary["script"] = cluster["script"]["main"]
    else:
        done = {"epochs_done": counts["epochs"], "epochs": counts["epochs"], "steps": counts["total_steps"]}
        summary = {**SUMMARY, "workers": workers, **done, "weights_sha256_by_rank": ["8c1d431dde07dfef" * 4] * workers}
    (run / "summary.json").write_text(json.dumps({**summary, **more}))
    return run


def train(commands: Commands, name: str, *arguments: str) -> Path:
    """A run that has ended well: a classifier of images."""
    run = succeed(launch(commands, name, *arguments))
    epochs = json.loads((run / "summary.json").read_text())["epochs"]
    write_history(run / "history.csv", OVERFITTING[:epochs])
    (run / "checkpoints").mkdir()
    for epoch in range(1, epochs + 1):
        (run / f"checkpoints/epoch-{epoch:04d}.keras").write_bytes(f"weights of epoch {epoch}".encode() * 50)
    return run


def save_snapshots(run: str, epochs: list[int]) -> None:
    """Snapshots of a run's model with random weights, different ones for each epoch. Needs TensorFlow."""
    import numpy as np

    from control.runs.predict.trained_model import Trained
    from trainer.rundir.layout import snapshot_path

    model = Trained.of(Path(run)).predictor().model
    (Path(run) / "checkpoints").mkdir(exist_ok=True)
    for epoch in epochs:
        random = np.random.default_rng(epoch)
        model.set_weights([random.normal(0, 0.1, weight.shape).astype(weight.dtype) for weight in model.get_weights()])
        model.save(snapshot_path(Path(run), epoch))


def save_model(path: str, file: str, function: str) -> None:
    """The model that a user's function builds, as a snapshot. Needs TensorFlow."""
    spec = importlib.util.spec_from_file_location("users", file)
    users = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(users)
    getattr(users, function)().save(path)


def probabilities(run: str, epoch: int, files: list[str]) -> list[list[float]]:
    """What a run's snapshot gives for image files. Needs TensorFlow."""
    import numpy as np

    from control.runs.predict.trained_model import Trained
    from trainer.data import images

    trained = Trained.of(Path(run))
    rows = np.stack([images.fit(images.decode(Path(file).read_bytes()), trained.image_size) for file in files])
    return np.asarray(trained.snapshot(epoch).call((rows,))[0]).tolist()
