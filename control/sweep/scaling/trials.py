"""A sweep's trials: each is a complete launch in a separate process, is recorded, and is removed from the hosts."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display

from control.campaign.store import Pace, Row
from control.campaign.timings import FAILED
from control.common import project
from control.common.child_playbooks import Playbook, last_lines
from control.common.progress_line import Line
from control.runs.results.summary import Summary
from trainer.common.files import read_json, write_json

MARKS = "under_way"
"""Folder with one file per trial that may have left files or processes on the hosts."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that is left to run."""

    trial: Any
    """The trial in the form of its row."""
    run: str
    """Name of the trial's run."""
    label: str
    """The trial in messages."""


@dataclass
class Bench:
    """Runs the trials of a sweep; subclasses define a trial."""

    record: dict[str, Any]
    """The sweep's summary.json, with `folder`."""
    variables: dict[str, Any]
    """Variables of the inventory that were given with `-e`."""
    ended: Callable[[], bool]
    """True once the command has been ended."""

    attempts: ClassVar[int] = 1
    """Number of attempts of one command at a trial that fails."""

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.record["folder"])

    @property
    def trials(self) -> list[PlannedTrial]:
        """Trials left to run, in order."""
        raise NotImplementedError

    @property
    def slots(self) -> list[list[str]]:
        """Disjoint groups of hosts, by name, on which trials may run side by side."""
        raise NotImplementedError

    def prepare(self, line: Line) -> None:
        """Prepare the first trial, and show the progress.

        Raises:
            LockstepError: the preparation failed, as all trials would.
        """
        raise NotImplementedError

    def measure(self, planned: PlannedTrial, hosts: Sequence[str], ended: Callable[[], bool]) -> Row:
        """Run a trial on these hosts; return its row, even if it failed."""
        raise NotImplementedError

    def put(self, row: Any) -> None:
        """Keep a row."""
        raise NotImplementedError

    def pace(self) -> Pace:
        """Estimator of trial durations, from earlier trials."""
        raise NotImplementedError

    def outcome(self, row: Any) -> str:
        """Text on the outcome of a trial, for messages."""
        raise NotImplementedError

    def clear_leftover(self) -> None:
        """Remove trials that earlier commands left running or could not remove."""
        for mark in sorted((self.folder / MARKS).glob("*.json")):
            self._remove(mark.stem, **read_json(mark))

    def last_lines(self, run: str, count: int = 25) -> list[str]:
        """The end of the output of a trial's command."""
        return last_lines(self._log(run), count)

    def local(self, run: str) -> Path:
        """A trial's files."""
        return self.folder / "trials" / run

    def launch(
        self,
        run: str,
        hosts: Sequence[str],
        options: dict[str, Any],
        ended: Callable[[], bool],
        meanwhile: Callable[[float], None] = lambda _: None,
    ) -> Summary:
        """Train in a child process, and leave nothing on the hosts.

        Args:
            run: name of the trial's run.
            hosts: names of the hosts that train, by rank.
            options: further operator variables of the trial.
            ended: returns whether to give up.
            meanwhile: called a few times per second with the elapsed seconds.

        Returns:
            The trial's summary, with the state FAILED whenever the child failed.
        """
        local, begun = self.local(run), time.monotonic()
        # Results of a failed attempt would make this one a continuation.
        shutil.rmtree(local, ignore_errors=True)
        self._log(run).unlink(missing_ok=True)
        workers = ",".join(hosts)
        options = {**self.variables, **options, "run": run, "sweep": self.record["name"], "workers": workers}
        write_json(self._mark(run), {"workers": workers})
        code = self._play("trial", run, options, ended, lambda: meanwhile(time.monotonic() - begun))
        summary = Summary.read(local)
        self._forget_weights(run)
        if code != 0:
            self._remove(run, workers, ended)
            return summary.changed(state=FAILED)
        self._mark(run).unlink()
        return summary

    def _remove(self, run: str, workers: str, ended: Callable[[], bool] | None = None) -> None:
        """End a trial's processes and remove its folders on the hosts."""
        self._forget_weights(run)
        options = {**self.variables, "run": run, "sweep": self.record["name"], "workers": workers}
        if self._play("remove_trial", run, options, ended or self.ended) == 0:
            self._mark(run).unlink(missing_ok=True)
        else:
            where = project.relative(self._log(run))
            Display().warning(f"{run}: something of it may be left on its hosts (see {where}); the next sweep.yml tries again")

    def _forget_weights(self, run: str) -> None:
        for name in ("checkpoints", "state"):
            shutil.rmtree(self.local(run) / name, ignore_errors=True)

    def _play(
        self, name: str, run: str, options: dict[str, Any], ended: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None
    ) -> int:
        return Playbook(f"playbooks/stages/{name}.yml", options, self._log(run)).run(ended, meanwhile)

    def _mark(self, run: str) -> Path:
        return self.folder / MARKS / f"{run}.json"

    def _log(self, run: str) -> Path:
        return self.folder / "logs" / f"{run}.log"
