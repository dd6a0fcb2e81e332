"""Hosts of one run without Ansible: the files that a launch leaves on each, and the processes that its start script runs.

The workers behind their supervisors are stubs.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control.common import configurations
from control.datasets.listing import registry
from control.datasets.publishing import publish
from control.remote.worker_files import read_records
from control.runs.hosts.inventory_hosts import tf_config
from tests import launching
from tests.project import SLOWEST, Project, await_until
from trainer.common.files import read_json, write_json
from trainer.common.plain_values import from_plain
from trainer.config import schedule
from trainer.host import sealed_files
from trainer.host.claims import SUPERVISED
from trainer.rundir.launch_record import Host
from trainer.rundir.schemas import read_history

SETTINGS = {
    "seed": 3,
    "model.name": "task_cnn",
    "data.image_size": [8, 8, 3],
    "train.global_batch": 20,
    "train.steps_per_call": 2,
    "train.steps_per_epoch": 10,
    "train.steps": 40,
}
ONCE = {"recovery.max_restarts": 0}
RECOVERY = {"recovery.max_restarts": 5}
ELASTIC = {**RECOVERY, "recovery.elastic": True, "recovery.elastic_wait": 0.5, "recovery.rejoin_wait": 30.0}
RUN = "run"
SILENCE_S = 60.0
END_S = 60.0


class Hosts:
    """Hosts `worker1`, `worker2`, ... that train one run of the stub worker; those after the first `workers` are spares."""

    def __init__(self, root: Path, code: Project, pictures: Path, workers: int = 2, spares: int = 0):
        """Publish `pictures`; `code` is a scratch copy of the project with the stub worker."""
        self.root, self._code, self.workers = root, code, workers
        self.names = [f"worker{number}" for number in range(1, workers + spares + 1)]
        self._packs = root / "packs"
        source = registry.open_source("folder", str(pictures))
        self._manifest = publish.publish(source, self._packs, False, lambda *_: None)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._scripts: dict[int, list[str]] = {}
        (root / "stub").mkdir()

    # --- what is on a host

    def run(self, worker: int) -> Path:
        """The run directory of a worker, counted from 1."""
        return self.root / f"worker{worker}" / "runs" / RUN

    def own(self, worker: int) -> Path:
        """The worker's part of it."""
        return self.run(worker) / "workers" / f"worker{worker}"

    def log(self, worker: int) -> str:
        """The text of worker.log."""
        return (self.own(worker) / "worker.log").read_text()

    def records(self, worker: int, kind: str) -> list[dict[str, Any]]:
        """The records of a kind in metrics.jsonl."""
        return [record for record in read_records(self.own(worker) / "metrics.jsonl") if record["kind"] == kind]

    def steps(self, worker: int) -> int:
        """Steps that a worker has recorded."""
        return max((record["step"] for record in self.records(worker, "steps")), default=0)

    def states(self, worker: int) -> list[str]:
        """Names of the states on a host, oldest first."""
        return sealed_files.names(self.run(worker) / "state")

    def summary(self, chief: int = 1) -> dict[str, Any]:
        """summary.json, which the chief wrote."""
        return dict(read_json(self.run(chief) / "summary.json"))

    def epochs(self, chief: int = 1) -> list[int]:
        """The epochs in history.csv."""
        return [row["epoch"] for row in read_history(self.run(chief) / "history.csv")]

    # --- what a launch does

    def launch(self, *settings: Mapping[str, Any], silence: float = SILENCE_S, weights: Path | None = None) -> None:
        """Write the files of a launch and start all hosts; settings by dotted name, later ones win; `weights`: a file to start with."""
        named = dict(ChainMap(*reversed(settings), SETTINGS))
        config = configurations.build(configurations.override({}, named))
        counts = schedule.counts(config, self.workers, self._manifest.count("train"), self._manifest.held_out)
        hosts = launching.addressed([{"name": name} for name in self.names])
        recovery = configurations.to_dict(config)["recovery"]
        record = {"run": RUN, "counts": vars(counts)} | launching.supervised(hosts, self.workers, recovery, silence)
        secret = secrets.token_hex(32)
        for rank, name in enumerate(self.names):
            run, place = self.run(rank + 1), publish.place_of(self._packs, self._manifest.sha256)
            own = launching.write(run, name, configurations.dump(config), record, secret)
            environment = tf_config([from_plain(Host, host) for host in hosts[: self.workers]], rank) if rank < self.workers else {}
            (own / "tf_config.json").write_text(json.dumps(environment))
            reads = launching.reading(run, name, place, self.root / "caches")
            worker = [*launching.training(reads, hosts[rank], weights), "--start-deadline", "60"]
            self._scripts[rank + 1] = launching.command(record, worker)
        for worker in range(1, len(self.names) + 1):
            self.start(worker)

    def start(self, worker: int) -> None:
        """Start what a host's start script does: also once more, after it was lost."""
        own = self.own(worker)
        given = {
            "TF_CONFIG": (own / "tf_config.json").read_text(),
            "PYTHONPATH": str(self._code.root),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with (own / "worker.log").open("ab") as log:
            process = self._code.popen(
                [sys.executable, *self._scripts[worker]],
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=own,
                start_new_session=True,
            )
        self._processes = [*self._processes[: worker - 1], process, *self._processes[worker:]]

    def train(self, *settings: Mapping[str, Any]) -> dict[str, Any]:
        """Launch, wait for a good end, and return the summary."""
        self.launch(*settings)
        self.end()
        return self.summary()

    def end(self, **codes: int) -> None:
        """Wait until all hosts have ended with 0, or with the codes that are given by the host's name."""
        ends = {name: process.wait(SLOWEST * END_S) for name, process in zip(self.names, self._processes, strict=True)}
        expected = {name: codes.get(name, 0) for name in self.names}
        assert ends == expected, "\n".join(f"--- {name}\n{self.log(number)[-3000:]}" for number, name in enumerate(self.names, 1))

    def drop_the_last(self) -> None:
        """Have one worker fewer at the next launch."""
        self.workers -= 1
        del self.names[-1], self._processes[-1]

    # --- orders and faults

    def hold(self, step: int) -> None:
        """Let all workers wait before a step, counted from 0."""
        write_json(self.root / "stub" / f"{RUN}.json", {"hold": step})

    def release(self) -> None:
        """Let them go on."""
        (self.root / "stub" / f"{RUN}.json").unlink(missing_ok=True)

    def await_held(self, step: int, worker: int = 1) -> None:
        """Wait until a worker has come to the step before which all wait, and has recorded the steps before it."""
        self.until(lambda: self.steps(worker) >= step, f"step {step}")

    def await_inside(self, step: int) -> None:
        """Wait until all wait before a step, which may be inside a call."""
        held = self.root / "stub" / f"{RUN}.held"
        self.until(lambda: held.is_file() and held.read_text() == str(step), f"step {step}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fail with the logs if all hosts end before."""
        await_until(condition, END_S, what, ended=self._words)

    def _words(self) -> str | None:
        over = all(process.poll() is not None for process in self._processes)
        return "\n".join(self.log(worker + 1)[-3000:] for worker in range(len(self.names))) if over else None

    def pids(self, worker: int) -> dict[str, int]:
        """Process ids of a host's `supervisor` and `worker`."""
        return dict(read_json(self.own(worker) / SUPERVISED)["pids"])

    def hold_at(self, step: int, worker: int = 1) -> None:
        """Let all workers go on, and wait again before a step, to which they come, as this worker records."""
        self.hold(step)
        self.await_held(step, worker)

    def kill(self, worker: int, number: int = signal.SIGKILL) -> int:
        """Send a signal to a host's worker; return its process id."""
        pid = self.pids(worker)["worker"]
        os.kill(pid, number)
        return pid

    def lose(self, worker: int) -> None:
        """Kill a host's supervisor for good, which takes its worker along."""
        process = self._processes[worker - 1]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(SLOWEST * END_S)

    def ended(self, worker: int) -> int:
        """Wait for the end of what the start script runs; return its exit code."""
        return self._processes[worker - 1].wait(SLOWEST * END_S)

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to what the start script runs."""
        self._processes[worker - 1].send_signal(number)

    def close(self) -> None:
        """Kill whatever still runs."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(SLOWEST * END_S)
