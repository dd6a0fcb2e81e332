"""Train undisturbed, then with faults round by round, and compare; the same name continues with the next round after an interruption."""

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible import context
from ansible.utils.display import Display

from benchmarks.chaos.chaos_results import Report
from benchmarks.chaos.faults import FAULTS, Scene
from benchmarks.chaos.injection import CHECKPOINT_EVERY, FIRST, STEPS_PER_CALL, STORE, Begun, Injection, schedule
from benchmarks.shared import benchmark, lab_nodes
from benchmarks.shared.benchmark import PLAN, ROWS
from control.campaign.store import SUMMARY, check_name, remaining
from control.common import command_line, project, text
from control.common.child_playbooks import Interrupted, Playbook, heeding_signals, last_lines, refuse_questions
from control.common.operator_variables import integer
from control.common.progress_line import Line
from control.common.task import Task
from control.remote import trainer_package
from control.remote.worker_files import metrics, read_records
from control.runs.planning import plan_command
from control.runs.results.summary import Summary
from trainer.common.errors import LockstepError
from trainer.common.files import write_json, write_text
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host, LaunchRecord

COMMAND = "benchmarks/chaos"
TRAINED = ("config", "model", "dataset")
"""Variables of train.yml that are passed on."""
ALIKE = ("seed", "faults", "spacing", *TRAINED, "set", "hosts", "code")
"""Values that must not change when a benchmark is continued."""
PATIENCE_S, LOOK_S = 300.0, 1.0
"""Seconds without the step that is waited for, after which a training counts as lost; seconds between two looks."""
SETTINGS = {
    "train.steps_per_call": STEPS_PER_CALL,
    "telemetry.profile_every": 0,
    "telemetry.sample_every": 1,
    "checkpoint.every_steps": CHECKPOINT_EVERY,
    "recovery.max_restarts": 1000,
    "recovery.max_restarts_per_hour": 1000,
}
NEWS = 8192
"""Bytes at the end of metrics.jsonl that are looked at."""


def run_chaos(task: Task) -> dict[str, Any]:
    """Writes results.csv row by row, then table.md, summary.json and a picture."""
    return RunChaos(**vars(task)).run()


class RunChaos(Task):
    """The task, with what it keeps while it runs."""

    def run(self) -> dict[str, Any]:
        """Plan, train, disturb, conclude."""
        options = command_line.operator_options(COMMAND, self.task_vars)
        refuse_questions()
        self.bench = plan(options, plan_command.hosts(self.task_vars))
        self.folder = benchmark.RESULTS / self.bench["name"]
        rows = STORE.read(self.folder / ROWS)
        rounds = {number: remaining(_scheduled(self.bench, number), rows) for number in range(1, self.bench["rounds"] + 1)}
        left = {number: faults for number, faults in rounds.items() if faults}
        Display().display(_shown(self.bench, sum(map(len, left.values()))))
        if self.check_mode:
            return {}
        self.lab = lab_nodes.nodes(self.bench["cpus"])
        if missing := [name for name in self.bench["names"] if name not in self.lab.containers]:
            raise LockstepError(f"{missing[0]} is no node of this project's lab: -i inventory/lab")
        self.line = Line(Display(), command_line.terminal(), every=30)
        with heeding_signals() as self.ended:
            self._all(left)
        return {"changed": bool(left), "show_last": conclude(self.folder, self.bench)}

    def _all(self, left: Mapping[int, list[Injection]]) -> None:
        name = self.bench["name"]
        write_json(self.folder / PLAN, self.bench)
        try:
            if "digest" not in self.bench:
                self.bench["digest"] = self._undisturbed()
                write_json(self.folder / PLAN, self.bench)
            for number, faults in left.items():
                self._round(number, faults)
        except Interrupted:
            raise LockstepError(f"interrupted; ended rounds are kept: -e chaos={name} continues with the next") from None
        finally:
            self.line.end()

    def _undisturbed(self) -> str:
        run = f"{self.bench['name']}-undisturbed"
        self._play("train", run, self._options())
        return str(Summary.read(project.RUNS / run).weights_sha256)

    def _options(self) -> dict[str, Any]:
        settings = {**SETTINGS, "train.steps": _steps(self.bench)}
        chosen = ",".join([*(f"{key}={value}" for key, value in settings.items()), *filter(None, [self.bench["set"]])])
        given = {key: self.bench[key] for key in TRAINED if self.bench[key] is not None}
        return {**given, "set": chosen}

    def _round(self, number: int, faults: list[Injection]) -> None:
        run = f"{self.bench['name']}-{number}"
        if (project.RUNS / run).exists():
            self._play("stop", run, {}, check=False)
            self._play("playbooks/delete_run", run, {})
        self._play("train", run, {**self._options(), "detach": True})
        scene = Scene(self.lab, run, self.arguments["root"], self.bench["names"], lambda: self._watcher(run))
        try:
            times = self._inject(scene, faults)
            code = self._play("train", run, {}, check=False)
        except BaseException:
            self._play("stop", run, {}, check=False, heed=False)
            raise
        summary = Summary.read(project.RUNS / run)
        equal = code == 0 and summary.weights_sha256 == self.bench["digest"]
        workers = {name: _read_all(project.RUNS / run / "workers" / name / "metrics.jsonl") for name in scene.hosts}
        untils = [*(one.began for one in times[1:]), time.time()]
        for begun, until in zip(times, untils, strict=True):
            row = begun.row(until, workers, scene.hosts[0])
            STORE.put(self.folder / ROWS, replace(row, equal=equal, state=str(summary.state)))
        self.line.print(f"round {number}: {len(times)} faults, {summary.state}, weights {'equal' if equal else 'DIFFERENT'}")

    def _inject(self, scene: Scene, faults: Sequence[Injection]) -> list[Begun]:
        """Inject each fault when it is due; those that are left when the training is lost are not injected."""
        times: list[Begun] = []
        for fault in faults:
            since = times[-1].ended if times else 0.0
            if not self._reaches(scene, fault.due, since):
                self.line.print(f"round {fault.round}: no step {fault.due} within {PATIENCE_S:.0f} s")
                break
            self.line.print(f"round {fault.round}, step {fault.due}: {fault.fault} ({fault.host})")
            entered = time.time()
            with FAULTS[fault.fault][0](scene, fault.host) as began:
                pass
            times.append(Begun(fault, began or entered, time.time()))
        return times

    def _reaches(self, scene: Scene, step: int, since: float) -> bool:
        """Wait until the training has done a step after that time; False if it does not get there."""
        progress, moved = -1, time.monotonic()
        while time.monotonic() - moved < PATIENCE_S:
            if self.ended():
                raise Interrupted
            at = _newest_step(scene, since)
            if at >= step:
                return True
            if at != progress:
                progress, moved = at, time.monotonic()
            self.line.update(f"{scene.run}: step {max(0, at):,}, the next fault is due at step {step:,}")
            time.sleep(LOOK_S)
        return False

    def _watcher(self, run: str) -> "subprocess.Popen[bytes]":
        inventory = [word for one in context.CLIARGS.get("inventory") or () for word in ("-i", str(one))]
        argv = [sys.executable, "-m", "ansible", "playbook", *inventory, "-e", f"run={run}", "train.yml"]
        quiet, pipe, joined = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(argv, cwd=project.ROOT, stdin=quiet, stdout=pipe, stderr=joined, start_new_session=True)

    def _play(self, command: str, run: str, options: dict[str, Any], check: bool = True, heed: bool = True) -> int:
        log = self.folder / "logs" / f"{run}.log"
        variables = {**command_line.inventory_overrides(COMMAND), **options, "run": run}
        show: Callable[[], None] = lambda: self.line.update(f"{run}: {command}.yml")  # noqa: E731
        code = Playbook(f"{command}.yml", variables, log).run(self.ended if heed else lambda: False, show)
        if check and code != 0:
            end = "\n".join(f"  {line}" for line in last_lines(log, 25))
            raise LockstepError(f"{run}: {command}.yml failed (exit code {code}):\n{end}\n-e chaos={self.bench['name']} continues")
        return code


def _newest_step(scene: Scene, since: float) -> int:
    """The last step that the chief recorded after a time; -1 if none, or if its node can't be asked."""
    chief = scene.hosts[0]
    try:
        written = scene.lab.on(chief, "tail", "-c", str(NEWS), f"{scene.folder}/workers/{chief}/metrics.jsonl")
    except LockstepError:
        return -1
    records, _ = metrics(written.splitlines())
    return next((int(one["step"]) for one in reversed(records) if one["kind"] == "steps" and one["t"] > since), -1)


def _read_all(path: Path) -> list[dict[str, Any]]:
    """A worker's records; empty if there are none."""
    return read_records(path) if path.is_file() else []


def plan(options: dict[str, Any], hosts: list[Host]) -> dict[str, Any]:
    """Plan of the training and of its faults."""
    name = str(options.get("chaos", f"chaos-{datetime.datetime.now(tz=datetime.UTC):%Y%m%d-%H%M%S}"))
    check_name("chaos", name)
    faults = str(options["faults"]).split(",") if "faults" in options else list(FAULTS)
    if unknown := [fault for fault in faults if fault not in FAULTS]:
        raise LockstepError(f"faults={unknown[0]}: it must be one of: {', '.join(FAULTS)}")
    if len(hosts) < 2:
        raise LockstepError(f"{len(hosts)} host: faults need two workers at least")
    made = {
        "name": name,
        "command": benchmark.command("benchmarks/chaos.yml", {**options, "chaos": name}),
        "rounds": integer("rounds", options.get("rounds", 3)),
        "seed": integer("seed", options.get("seed", 1)),
        "faults": faults,
        "spacing": integer("spacing", options.get("spacing", 100)),
        **{key: options.get(key) for key in TRAINED},
        "set": str(options.get("set", "")),
        "hosts": [host.label for host in hosts],
        "names": [host.name for host in hosts],
        "cpus": float(options.get("cpus", 0.3)),
        "code": trainer_package.TRAINER.sha256()[:16],
    }
    # The undisturbed training of a benchmark that is continued.
    return made | {key: value for key, value in benchmark.earlier("chaos", made, ALIKE).items() if key == "digest"}


def _steps(made: dict[str, Any]) -> int:
    """Steps of a training: as many after the last fault as between two."""
    return FIRST + int(made["spacing"]) * len(made["faults"])


def _scheduled(made: dict[str, Any], number: int) -> list[Injection]:
    """The faults of a round."""
    return schedule(made["faults"], made["names"], number, made["seed"], made["spacing"])


def conclude(folder: Path, made: dict[str, Any]) -> str:
    """Write table.md, summary.json and the picture; return the text to show."""
    rows = [row for row in STORE.read(folder / ROWS) if row.measured]
    if not rows:
        raise LockstepError(f"{made['name']}: no round has ended; logs: {project.relative(folder / 'logs')}")
    report = Report(rows)
    table = report.text()
    write_text(folder / "table.md", f"# {made['name']}\n\n    {made['command']}\n\n```\n{table}\n```\n")
    undisturbed = LaunchRecord.read(project.RUNS / f"{made['name']}-undisturbed")
    hosts = to_plain(undisturbed)["hosts"] if undisturbed else made["hosts"]
    write_json(folder / SUMMARY, {**made, "hosts": hosts, "by_fault": report.by_fault()})
    report.draw(folder / "chaos.png")
    pairs = [("table", project.relative(folder / "table.md")), ("picture", project.relative(folder / "chaos.png"))]
    pairs.append(("another round", benchmark.command("benchmarks/chaos.yml", {"chaos": made["name"], "rounds": made["rounds"] + 1})))
    return f"{table}\n\nNext\n{text.fields(pairs)}"


def _shown(made: dict[str, Any], left: int) -> str:
    """The plan."""
    pairs = [
        ("name", made["name"]),
        ("faults", ", ".join(made["faults"])),
        ("rounds", f"{made['rounds']}, each a training of {_steps(made):,} steps; {left} faults left"),
        ("hosts", ", ".join(made["hosts"])),
        ("seed", str(made["seed"])),
    ]
    return "Plan\n" + text.fields(pairs)
