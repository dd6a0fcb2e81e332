"""Train with and without compression over several seeds, evaluate each, and compare; the same name continues after any interruption."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from benchmarks.accuracy import accuracy_results
from benchmarks.accuracy.accuracy_plot import draw
from benchmarks.accuracy.accuracy_results import Row, Training
from benchmarks.shared import benchmark
from benchmarks.shared.benchmark import PLAN, ROWS
from control.campaign.store import SUMMARY, Pace, check_name, measure, remaining
from control.common import command_line, configurations, project, text
from control.common.child_playbooks import Interrupted, Playbook, heeding_signals, last_lines, refuse_questions
from control.common.operator_variables import integer
from control.common.progress_line import Line
from control.common.task import Task
from control.remote import trainer_package
from control.runs.planning import plan_command
from control.runs.planning.plan_request import OperatorRequest
from control.runs.results.run_folder import RunFolder
from control.sweep.scaling import design
from trainer.common.errors import LockstepError
from trainer.common.files import write_json, write_text
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.schemas import read_history

COMMAND = "benchmarks/accuracy"
ALIKE = ("epochs", "workers", "dataset", "set", "hosts", "code")
"""Values that must not change when a comparison is continued; more seeds, configurations and methods may be added."""
KEPT = ("configs", "methods", "seeds", *ALIKE)
"""Contents of the comparison's summary."""


def run_accuracy(task: Task) -> dict[str, Any]:
    """Writes results.csv row by row, then table.md, summary.json and a picture."""
    return RunAccuracy(**vars(task)).run()


class RunAccuracy(Task):
    """The task, with what it keeps while it runs."""

    def run(self) -> dict[str, Any]:
        """Plan, train what is missing, evaluate the results."""
        options = command_line.operator_options(COMMAND, self.task_vars)
        refuse_questions()
        self.comparison = plan(options, plan_command.hosts(self.task_vars))
        folder = Path(self.comparison["folder"])
        left = remaining(self.comparison["trainings"], accuracy_results.STORE.read(folder / ROWS))
        Display().display(_shown(self.comparison, len(left)))
        if self.check_mode:
            return {}
        write_json(folder / PLAN, {key: value for key, value in self.comparison.items() if key not in ("trainings", "folder")})
        self.line = Line(Display(), command_line.terminal(), every=30)
        with heeding_signals() as self.ended:
            self._all(left)
        return {"changed": bool(left), "show_last": conclude(folder, self.comparison)}

    def _all(self, left: list[Training]) -> None:
        try:
            measure(left, self.line, Pace(), lambda training: training.run(self.comparison["name"]), self._one)
        except Interrupted:
            name = self.comparison["name"]
            raise LockstepError(f"interrupted; what was trained is kept: -e accuracy={name} continues, and trains nothing twice") from None
        finally:
            self.line.end()

    def _one(self, training: Training, show: Callable[[], None]) -> str:
        run = training.run(self.comparison["name"])
        settings = ",".join(
            part for part in (f"seed={training.seed}", accuracy_results.METHODS[training.method], self.comparison["set"]) if part
        )
        chosen = {key: self.comparison[key] for key in ("epochs", "workers", "dataset") if self.comparison[key] is not None}
        try:
            self._play("train", run, {**chosen, "config": training.config, "set": settings}, self.ended, show)
            self._play("evaluate", run, {"epoch": "best,last"}, self.ended, show)
        except Interrupted:
            self._stop(run)
            raise
        row = row_of(training, project.RUNS / run)
        accuracy_results.STORE.put(Path(self.comparison["folder"]) / ROWS, row)
        return f"{row.config}  {row.method}  seed {row.seed}  test accuracy {row.test_accuracy:.4f}  {row.images_per_s:,.0f} images/s"

    def _stop(self, run: str) -> None:
        """Stop a run's workers, which outlive the command that started them; its state is kept, and its name continues it."""
        if (project.RUNS / run / "cluster.json").is_file():
            self.line.update(f"stopping {run}")
            self._play("stop", run, {}, lambda: False, lambda: None)

    def _play(self, command: str, run: str, options: dict[str, Any], ended: Callable[[], bool], show: Callable[[], None]) -> None:
        log = Path(self.comparison["folder"]) / "logs" / f"{run}.log"
        variables = {**command_line.inventory_overrides(COMMAND), **options, "run": run}
        code = Playbook(f"{command}.yml", variables, log).run(ended, show)
        if code != 0:
            end = "\n".join(f"  {line}" for line in last_lines(log, 25))
            raise LockstepError(f"{run}: {command}.yml failed (exit code {code}):\n{end}\n-e accuracy={self.comparison['name']} continues")


def plan(options: dict[str, Any], hosts: list[Host]) -> dict[str, Any]:
    """Plan of the trainings to compare."""
    name = str(options.get("accuracy", f"accuracy-{datetime.datetime.now(tz=datetime.UTC):%Y%m%d-%H%M%S}"))
    check_name("accuracy", name)
    named = str(options.get("configs", "task_cnn,deep_cnn")).split(",")
    for config in named:
        configurations.build(
            configurations.override(configurations.load(configurations.find(config)), OperatorRequest.of(options).overrides)
        )
    _refuse_compared(str(options.get("set", "")))
    methods = accuracy_results.methods(str(options.get("methods", "packed,powersgd")))
    seeds = design.numbers("seeds", options.get("seeds", "1-3"))
    workers = integer("workers", options.get("workers", len(hosts)))
    comparison = {
        "name": name,
        "folder": str(benchmark.RESULTS / name),
        "command": benchmark.command("benchmarks/accuracy.yml", {**options, "accuracy": name}),
        "more": benchmark.command("benchmarks/accuracy.yml", {**options, "accuracy": name, "seeds": f"1-{max(seeds) + 2}"}),
        "configs": named,
        "methods": methods,
        "seeds": list(seeds),
        "epochs": integer("epochs", options.get("epochs", 10)),
        "workers": workers,
        "hosts": [host.label for host in hosts[:workers]],
        "dataset": options.get("dataset"),
        "set": str(options.get("set", "")),
        "code": trainer_package.TRAINER.sha256()[:16],
        "trainings": accuracy_results.trainings(named, methods, seeds),
    }
    benchmark.earlier("accuracy", comparison, ALIKE)
    return comparison


def _refuse_compared(given: str) -> None:
    """Refuse settings that the comparison itself varies."""
    varied = {key for settings in accuracy_results.METHODS.values() for key in configurations.parse_set(settings)}
    ways = dict.fromkeys(varied, "methods=packed,powersgd-4") | {"seed": "seeds=1-3"}
    ways |= dict.fromkeys(("train.epochs", "train.steps", "train.time_limit"), "epochs=10")
    for key in configurations.parse_set(given) if given else {}:
        # A whole section would replace what the comparison sets in it.
        way = next((ways[one] for one in ways if one == key or one.startswith(f"{key}.")), None)
        if way:
            raise LockstepError(f"set={key}: the comparison varies or sets it; give it as -e {way}")


def row_of(training: Training, run: Path) -> Row:
    """The row of a finished and evaluated run."""
    summary, tested = RunFolder(run).summary.written, RunFolder(run).evaluations.accuracies
    last, best = summary["epochs_done"], summary["best"]["epoch"]
    speed = summary["images_per_s"], summary["seconds_training"]
    return Row(training.config, training.method, training.seed, last, tested[last], tested[best], *speed)


def conclude(folder: Path, comparison: dict[str, Any]) -> str:
    """Write table.md, summary.json and the picture; return the text to show."""
    rows = accuracy_results.STORE.read(folder / ROWS)
    table = accuracy_results.table(rows)
    write_text(folder / "table.md", f"# {comparison['name']}\n\n    {comparison['command']}\n\n```\n{table}\n```\n")
    clusters = (LaunchRecord.read(project.RUNS / row.trial.run(comparison["name"])) for row in reversed(rows))
    # A deleted run still has its row, but its machines are no longer known.
    hosts = next((to_plain(one)["hosts"] for one in clusters if one), comparison["hosts"])
    summary = {**{key: comparison[key] for key in (*KEPT, "command")}, "hosts": hosts}
    write_json(folder / SUMMARY, {**summary, "compared": accuracy_results.compared(rows)})
    draw(rows, _curves(rows, comparison["name"]), folder / "accuracy.png")
    pairs = [
        ("table", project.relative(folder / "table.md")),
        ("picture", project.relative(folder / "accuracy.png")),
        ("more seeds", comparison["more"]),
    ]
    return f"Test accuracy after {text.count(comparison['epochs'], 'epoch')}\n{table}\n\nNext\n{text.fields(pairs)}"


def _curves(rows: list[Row], name: str) -> dict[Training, list[float]]:
    """Validation accuracy of every epoch, for runs that still exist."""
    histories = {row.trial: read_history(project.RUNS / row.trial.run(name) / "history.csv") for row in rows}
    return {training: [epoch["val_accuracy"] for epoch in history] for training, history in histories.items() if history}


def _shown(comparison: dict[str, Any], left: int) -> str:
    """The plan."""
    pairs = [
        ("name", comparison["name"]),
        ("configurations", ", ".join(comparison["configs"])),
        ("methods", ", ".join(comparison["methods"])),
        ("seeds", ", ".join(map(str, comparison["seeds"]))),
        ("epochs", str(comparison["epochs"])),
        ("workers", str(comparison["workers"])),
        ("dataset", str(comparison["dataset"] or "the configurations' own")),
        ("trainings", f"{len(comparison['trainings'])}, of them {left} to do"),
    ]
    return "Plan\n" + text.fields(pairs)
