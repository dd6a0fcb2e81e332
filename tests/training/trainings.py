"""Trainings without Ansible: each is planned, launched and collected as `train.yml` does it, by processes of `tests.preloaded`."""

import json
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from control.datasets.publishing import publish
from control.runs.hosts.inventory_hosts import tf_config
from control.runs.planning import plan, plan_dataset, plan_request
from control.runs.planning.host_choice import with_environment
from tests import launching, preloaded
from tests.project import SLOWEST, Runs
from trainer.common.files import read_json, write_json
from trainer.common.plain_values import from_plain, to_plain
from trainer.config import loading
from trainer.rundir.launch_record import Host

SILENCE_S = 60.0
END_S = 120.0
LOG = "worker.log"
PLAN = "import json, sys; from tests.training import trainings; trainings.make_plan(json.loads(sys.argv[1]), sys.argv[2])"


@dataclass
class Trainings(Runs):
    """On this machine's `worker1`, `worker2`, ..., each a folder."""

    processes: list[preloaded.Popen] = field(default_factory=list)

    def node(self, worker: int, name: str) -> Path:
        """A run directory on a worker, counted from 1."""
        return self.root / f"worker{worker}" / "runs" / name

    def log(self, worker: int, name: str) -> str:
        """The text of worker.log."""
        return (self.node(worker, name) / "workers" / f"worker{worker}" / LOG).read_text()

    def train(self, *given: str, codes: Sequence[int] = (0, 0)) -> str:
        """Train with the variables `a=b` of `train.yml` to an end with these exit codes; the log of the first worker."""
        options = dict(one.split("=", 1) for one in given)
        name, workers = options["run"], len(codes)
        planned = self._planned({**options, "workers": str(workers)})
        hosts = launching.addressed(planned["hosts"])
        record = {"run": name, "id": name, **{key: planned[key] for key in ("dataset", "counts", "parameters", "compiled")}}
        record |= launching.supervised(hosts, len(hosts), planned["config"]["recovery"], SILENCE_S)
        self.run(name).mkdir(parents=True, exist_ok=True)
        write_json(self.run(name) / "cluster.json", record)
        started = [self._start(planned, record, rank) for rank in range(workers)]
        self.processes += started
        ended = [process.wait(SLOWEST * END_S) for process in started]
        assert ended == list(codes), "\n".join(f"--- worker{rank + 1}\n{self.log(rank + 1, name)[-4000:]}" for rank in range(workers))
        for rank in range(workers):
            shutil.copytree(self.node(rank + 1, name), self.run(name), dirs_exist_ok=True)
        return self.log(1, name)

    def end_all(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)

    def evaluate(self, name: str, *epochs: int) -> list[dict[str, Any]]:
        """What `evaluate.yml` leaves of each epoch."""
        out = self.run(name) / "evaluate"
        out.mkdir()
        words = ("-m", "trainer", "evaluate", *self._reads(name, 1), "--epochs", ",".join(map(str, epochs)), "--out", str(out))
        process = preloaded.logged(words, out, out / LOG, {})
        assert process.wait(SLOWEST * END_S) == 0, (out / LOG).read_text()
        return [dict(read_json(out / f"epoch-{epoch:04d}.json")) for epoch in epochs]

    def _reads(self, name: str, worker: int) -> list[str]:
        place = publish.place_of(self.root / "packs", read_json(self.run(name) / "cluster.json")["dataset"]["manifest"])
        return launching.reading(self.node(worker, name), f"worker{worker}", place, self.root / f"worker{worker}" / "caches")

    def _planned(self, options: dict[str, str]) -> dict[str, Any]:
        """The plan, with the data set published."""
        folder = Path(tempfile.mkdtemp(dir=self.root, prefix="plan-"))
        hosts = [
            {"name": f"worker{number}", "address": "127.0.0.1", "port": 0, "threads": 1} for number in range(1, 1 + int(options["workers"]))
        ]
        places = {"runs": str(self.root / "runs"), "packs": str(self.root / "packs"), "parameter_cache": str(self.root / "parameters")}
        asked = to_plain(plan_request.OperatorRequest.of(options))
        request = {"asked": asked, "hosts": hosts, "write": True, **places}
        process = preloaded.logged(("-c", PLAN, json.dumps(request), str(folder / "plan.json")), folder, folder / LOG, {})
        assert process.wait(SLOWEST * END_S) == 0, (folder / LOG).read_text()
        return {**read_json(folder / "plan.json"), "nonce": secrets.token_hex(16)}

    def _start(self, planned: dict[str, Any], record: dict[str, Any], rank: int) -> preloaded.Popen:
        name, hosts = planned["run"], record["hosts"]
        own = launching.write(self.node(rank + 1, name), f"worker{rank + 1}", planned["config_yaml"], record, planned["nonce"] * 2)
        weights = planned["weights"] and planned["weights"]["local"]
        worker = launching.training(self._reads(name, rank + 1), hosts[rank], weights)
        words = launching.command(record, worker)
        # What a killed worker leaves there goes with its run.
        temporary = own / "tmp"
        temporary.mkdir(exist_ok=True)
        more = {"TF_CONFIG": json.dumps(tf_config([from_plain(Host, host) for host in hosts], rank)), "TMPDIR": str(temporary)}
        return preloaded.logged(words, own, own / LOG, {**more, **hosts[rank].get("environment", {})})


def make_plan(request: dict[str, Any], answer: str) -> None:
    """Plan a run and publish its data set, in a process of its own."""
    subprocess.Popen = preloaded.Fork  # type: ignore[misc]
    asked = from_plain(plan_request.Request, request)
    made = plan.make_plan(asked)
    made = replace(made, hosts=[with_environment(host, made.config["train"]["environment"]) for host in asked.hosts])
    config = loading.build(made.config)
    source, _ = plan_dataset.open_dataset(config.data, True)
    manifest = publish.publish(source, Path(request["packs"]), config.data.allow_bad_images, lambda *_: None)
    made.dataset["manifest"] = manifest.sha256
    write_json(Path(answer), to_plain(made))
