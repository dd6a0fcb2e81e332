"""Measure what is left, one cell after another; however it ends, no process and no link limit stays on the hosts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from benchmarks.peer_results import peers_results, peers_train, peers_wheels
from benchmarks.peer_results.peer_trials import COMMAND, SYSTEMS, TRAIN, Cell, Settings
from benchmarks.peer_results.peers_results import Row
from benchmarks.shared.benchmark import MEASUREMENTS, ROWS
from benchmarks.tasks.conclude_peers import conclude
from control.campaign.store import Pace, alone, measure
from control.common import command_line, project
from control.common.child_playbooks import Interrupted, Playbook, heeding_signals, last_lines
from control.common.progress_line import Line
from control.common.task import Task
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, sha256_file

DEADLINE_S = 300
"""How long a worker of a cell may run in total."""
LINES = 10
"""Lines of a log to show after a failure."""
OUT = project.PRIVATE / "peers" / "cell"
LOGS = project.PRIVATE / "peers" / "logs"


def run_peers(task: Task) -> dict[str, Any]:
    """Each cell is a playbook of its own (`benchmarks/peers/cell.yml`); a row of results.csv is written when it ends."""
    return RunPeers(**vars(task)).run()


class RunPeers(Task):
    """The task, with what it keeps while it runs."""

    def run(self) -> dict[str, Any]:
        """Measure all remaining cells."""
        self.peers, self.missing = self.arguments["peers"], self.arguments["missing"]
        self.folder, self.names = Path(self.peers["folder"]), [host["name"] for host in self.peers["hosts"]]
        self.code_sha256 = sha256_file(peers_wheels.programs())
        self.line = Line(Display(), command_line.terminal(), every=30)
        self.variables = command_line.inventory_overrides(COMMAND)
        # In the lab, "none" is a rate like any other: the lab may have been created with its own limit.
        self.limits = bool(self.peers["lab"])
        with heeding_signals() as ended, alone():
            self.ended: Callable[[], bool] = ended
            try:
                self._clear()
                self._all([Cell(**cell) for cell in self.peers["cells"]])
            except (Interrupted, LockstepError) as error:
                conclude(self.peers)
                if isinstance(error, LockstepError):
                    raise
                raise LockstepError(f"interrupted; what was measured is kept; to continue: {self.peers['again']}") from None
            finally:
                self.line.end()
                self.ended = lambda: False
                self._clear()
        return {"changed": True}

    def _all(self, cells: list[Cell]) -> None:
        self.link = ""
        pace = Pace(lambda cell: (cell.link, cell.system), lambda cell: cell.link)
        measure(cells, self.line, pace, lambda cell: f"round {cell.round}, {_where(cell)}, {cell.system}", self._one)

    def _one(self, cell: Cell, show: Callable[[], None]) -> str:
        reason = self.missing.get(SYSTEMS[cell.system].environment)
        if self.limits and not reason and cell.link != self.link:
            if self._play("link", {"names": self.names, "rate": cell.link}) != 0:
                raise LockstepError("\n".join(last_lines(LOGS / "link.log", LINES)))
            self.link = cell.link
        measure = self._train if SYSTEMS[cell.system].program == TRAIN else self._measure
        row = Row.failed(cell, f"not installed: {reason}") if reason else measure(cell, show)
        peers_results.STORE.put(self.folder / ROWS, row)
        result = f"failed: {row.reason}"
        if row.seconds_step is not None and row.images_per_s is not None:
            result = f"{row.seconds_step * 1000:,.1f} ms per step, {row.images_per_s:,.0f} images/s"
        return f"round {cell.round}  {_where(cell)}  {cell.system}  {result}"

    def _measure(self, cell: Cell, meanwhile: Callable[[], None]) -> Row:
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(parents=True)
        hosts = self.peers["hosts"][: cell.workers]
        job = {
            "cell": asdict(cell),
            "settings": self.peers["settings"],
            "environment": SYSTEMS[cell.system].environment,
            "hosts": hosts,
            "threads": {host["name"]: self.arguments["hosts"][host["name"]]["threads"] for host in hosts},
            "code": self.peers["code"],
            "code_sha256": self.code_sha256,
            "deadline": DEADLINE_S,
            "out": str(OUT),
        }
        self._play("cell", {"cell": job, "names": self.names[: cell.workers]}, meanwhile)
        ends = [self._end(rank, host["name"]) for rank, host in enumerate(hosts)]
        self._keep(cell, ends)
        if all(end["exit"] == 0 and end["result"] for end in ends):
            return Row.of_results(cell, [end["result"] for end in ends])
        return Row.failed(cell, peers_results.first_failure(ends))

    def _train(self, cell: Cell, meanwhile: Callable[[], None]) -> Row:
        """A run of `train.yml`, watched to its end and deleted; its workers outlive an interrupted command, so they are stopped."""
        folder, variables = self._run_folder(), peers_train.variables(cell, Settings(**self.peers["settings"]))
        self._remove_run()
        try:
            code = self._command("train", {"run": folder.name, **variables}, self.ended, meanwhile)
            if code != 0:
                end = peers_results.telling(last_lines(LOGS / "train.log", LINES))
                return Row.failed(cell, f"train.yml: exit code {code}: {end}")
            self._note(cell, [{"result": None, "summary": read_json(folder / "summary.json")}])
            return peers_train.row(cell, folder)
        finally:
            self._remove_run()

    def _run_folder(self) -> Path:
        return project.RUNS / peers_train.run_name(self.peers["name"])

    def _remove_run(self) -> None:
        """End the run of a cell, and delete it from the hosts and here."""
        run = self._run_folder()
        if not run.exists():
            return
        # A run that has ended can't be stopped; one that still trains is not deleted.
        self._command("stop", {"run": run.name})
        if self._command("playbooks/delete_run", {"run": run.name}) != 0:
            end = "\n".join(last_lines(LOGS / "delete_run.log", LINES))
            raise LockstepError(f"{end}\nrun {run.name} is left; delete it: ansible-playbook playbooks/delete_run.yml -e run={run.name}")

    def _end(self, rank: int, host: str) -> dict[str, Any]:
        path = OUT / f"{rank}.json"
        if path.is_file():
            return dict(read_json(path))
        return {"host": host, "rank": rank, "exit": None, "result": None, "lines": last_lines(LOGS / "cell.log", LINES)}

    def _keep(self, cell: Cell, ends: list[dict[str, Any]]) -> None:
        """Keep all output of the workers, so that a row can be checked."""
        kept = [{key: value for key, value in end.items() if key != "lines" or end["exit"] != 0} for end in ends]
        self._note(cell, kept)

    def _note(self, cell: Cell, workers: list[dict[str, Any]]) -> None:
        with (self.folder / MEASUREMENTS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"cell": cell.key, "workers": workers}) + "\n")

    def _clear(self) -> None:
        """End what an earlier command may have left on the hosts, and restore the links' own rate."""
        code = self._play("clear", {"names": self.names, "limits": self.limits})
        if code != 0:
            where = project.relative(LOGS / "clear.log")
            Display().warning(f"something of the benchmark may be left on its hosts (see {where}); the next one tries again")

    def _play(self, name: str, variables: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> int:
        own = {"peers_path": self.peers["peers_path"]} if self.peers["peers_path"] else {}
        return self._command(f"benchmarks/peers/{name}", {**own, **variables}, self.ended, meanwhile)

    def _command(
        self,
        path: str,
        variables: dict[str, Any],
        ended: Callable[[], bool] = lambda: False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> int:
        log = LOGS / f"{Path(path).name}.log"
        log.unlink(missing_ok=True)
        return Playbook(f"{path}.yml", {**self.variables, **variables}, log).run(ended, meanwhile)


def _where(cell: Cell) -> str:
    return peers_results.heading(cell.link, cell.workers)
