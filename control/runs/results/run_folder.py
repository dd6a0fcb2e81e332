"""A run's folder on the control node: the contents of its files, and the user's choice of snapshots."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import configurations, project
from control.remote import worker_files
from control.runs.hosts import host_roles
from control.runs.results import stragglers
from control.runs.results.evaluation_table import EvaluationTable
from control.runs.results.outcome import Verdict, Verdicts
from control.runs.results.summary import Summary
from trainer.common.errors import LockstepError
from trainer.common.suggest import nearest
from trainer.data.spec import noun
from trainer.rundir import layout
from trainer.rundir.best_epoch import best_row
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.schemas import read_history

EPOCH_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
WORDS = ("first", "best", "last", "all")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. Files are read at each call, because another process may replace them."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def is_users(self) -> bool:
        """True for one of the user's own runs, not a sweep's, the doctor's or a benchmark's."""
        return self.path.parent == project.RUNS

    @property
    def is_trial(self) -> bool:
        """True for a sweep's trial."""
        return self.path.parent.name == project.TRIALS

    @property
    def config(self) -> dict[str, Any]:
        """config.yml; empty if there is none."""
        path = self.path / "config.yml"
        return configurations.load(path) if path.is_file() else {}

    @property
    def record(self) -> LaunchRecord:
        """cluster.json, the record of the last launch; empty before the first."""
        return LaunchRecord.read(self.path)

    @property
    def summary(self) -> Summary:
        """The run's end, from summary.json."""
        return Summary.read(self.path)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Rows of history.csv."""
        return read_history(self.path / "history.csv")

    @property
    def evaluations(self) -> EvaluationTable:
        """evaluations.csv."""
        return EvaluationTable(self.path / "evaluations.csv")

    @property
    def monitor(self) -> str | None:
        """`train.monitor`: the metric that decides which epoch is the best."""
        return layout.snapshots_policy(self.path)[1]

    @property
    def noun(self) -> str:
        """Noun for an example of its dataset."""
        return noun(self.record.dataset.get("spec"))

    @property
    def host_names(self) -> list[str]:
        """Names of the hosts that trained, by rank."""
        return [host.name for host in self.record.hosts]

    @property
    def evaluators(self) -> list[str]:
        """Names of the hosts that evaluate snapshots while others train."""
        return host_roles.evaluators(self.record.hosts)

    @property
    def is_elastic(self) -> bool:
        """True if it may go on without a host."""
        recovery = self.config.get("recovery", {})
        return bool(recovery.get("elastic") and recovery.get("max_restarts"))

    @property
    def rejoin_wait(self) -> float:
        """Seconds that the run's supervisors wait for each other; 0: it has none."""
        recovery = self.config.get("recovery", {})
        return float(recovery["rejoin_wait"]) if recovery.get("max_restarts") else 0.0

    @property
    def straggler(self) -> str:
        """A sentence on the straggler of its last epochs; empty if there is none."""
        hosts = self.host_names
        record = stragglers.last(worker_files.chief_records(self.path)) if hosts else None
        return stragglers.sentence(record, hosts) if record else ""

    @property
    def output(self) -> list[str]:
        """Names of the files that a script left on the chief."""
        folder = self.path / "output"
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def remaining(self, hosts: Sequence[Host]) -> list[Host]:
        """Workers for the stages after training: no spares, although these may have trained, and no hosts that were lost in the end."""
        lost = {one["host"] for one in self.summary.lost}
        return [host for host in hosts if host.name not in lost]

    # --- its end

    def judged(self, verdicts: Iterable[Verdict]) -> Verdicts:
        """The verdicts of the run's workers; evaluators, and hosts without which an elastic run went on, have not failed."""
        needed = Verdicts(verdicts).without(self.evaluators)
        return needed.without_lost(len(self.record.hosts)) if self.is_elastic else needed

    def concluded(self, verdicts: Verdicts, cancelled: bool = False) -> Summary:
        """The run's summary, with the state that follows from its workers' verdicts; `cancelled`: they were requested to stop."""
        before, record = self.summary, self.record
        state = verdicts.run_state(before.state, cancelled, bool(record.script))
        written = {"workers": len(verdicts), **before.written, "state": state}
        written.pop("failure", None)
        if record.script:
            written |= {"script": record.script["main"], "restarts": record.script["restarts"], **self._script_seconds()}
        if "job" in record.slurm:
            written["started_by"] = "playbooks/slurm.yml"
        spares = {host.name for host in record.spares}
        took_places = [verdict.host for verdict in verdicts if verdict.host in spares]
        written |= {name: value for name, value in (("lost", verdicts.lost), ("took_places", took_places)) if value}
        if (cause := verdicts.root_cause) and state == "FAILED":
            written["failure"] = cause.in_summary
        return Summary.of(written)

    def _script_seconds(self) -> dict[str, float]:
        """Seconds of a script's run (`seconds_total`): those of the chief's process, if it has ended."""
        path = layout.part_of(self.path, self.host_names[0]) / "exit.json"
        if not path.is_file():
            return {}
        ended = worker_files.end(path.read_text(encoding="utf-8"))
        return {"seconds_total": round(ended["ended_at"] - ended["started_at"], 3)}

    # --- its snapshots

    def _missing_epochs(self) -> list[int]:
        """Epochs whose snapshots the run should have, according to its history, but that are missing here."""
        policy, monitor = layout.snapshots_policy(self.path)
        rows, existing = self.history, set(layout.existing_epochs(self.path))
        kept = layout.kept(policy, sorted(existing | {row["epoch"] for row in rows}), rows, monitor) if rows else set()
        return sorted(kept - existing)

    @property
    def missing_snapshots(self) -> set[str]:
        """Names, in the run's folder, of snapshots that it should have but that are missing here."""
        return {layout.snapshot_path(self.path, epoch).relative_to(self.path).as_posix() for epoch in self._missing_epochs()}

    def lost_snapshots(self, summary: Summary) -> str:
        """Sentence on missing snapshots of a run that has ended; empty if none or all are missing, or if some could not be saved."""
        if summary.under_way or summary.unsaved or not layout.existing_epochs(self.path):
            return ""
        epochs = self._missing_epochs()
        return f"none here of epoch {ranges(epochs)}: removed, or lost with the chief's disk before they were collected" if epochs else ""

    def choose_epochs(self, asked: object) -> list[int]:
        """Epochs for `12`, `1,12,30`, `2-5`, `first`, `best`, `last` or `all`, in that order.

        Raises:
            LockstepError: an epoch without a snapshot.
        """
        existing = layout.existing_epochs(self.path)
        if not existing:
            raise LockstepError(
                f"run={self.name}: none of its snapshots is here; the first is written at the end of epoch 1. "
                f"Fix: ansible-playbook train.yml -e run={self.name} watches it, or collects what it left if it has ended"
            )
        chosen: list[int] = []
        for word in str(asked).split(","):
            chosen += [epoch for epoch in self._epochs_of(word.strip(), existing) if epoch not in chosen]
        return chosen

    def _epochs_of(self, word: str, existing: list[int]) -> list[int]:
        if word == "all":
            return existing
        if word in ("first", "last"):
            return [existing[0 if word == "first" else -1]]
        if word == "best":
            rows = [row for row in self.history if row["epoch"] in existing]
            if not rows:
                raise LockstepError(f"epoch=best: {self.name} has no history.csv that says which epoch is best; name a number")
            return [int(best_row(rows, self.monitor)["epoch"])]
        numbers = EPOCH_RANGE.fullmatch(word)
        if not numbers or (numbers[2] and int(numbers[2]) < int(numbers[1])):
            words = ", ".join(WORDS)
            raise LockstepError(f"epoch={word}: expected numbers as in 12, 1,12,30 or 2-5, or one of {words}{nearest(word, WORDS)}")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        epochs = [epoch for epoch in existing if first <= epoch <= last]
        if len(epochs) != last - first + 1:
            which = "such snapshot" if first == last else "snapshot of some of these" if epochs else "such snapshots"
            policy, _ = layout.snapshots_policy(self.path)
            because = "" if policy == "all" else f" (checkpoint.snapshots={policy} keeps no others)"
            raise LockstepError(f"epoch={word}: run {self.name} has no {which}; there are: {ranges(existing)}{because}")
        return epochs

    @property
    def marks(self) -> dict[int, str]:
        """First, best and last snapshot: epoch -> `best, last`."""
        existing, words = layout.existing_epochs(self.path), dict[int, str]()
        with_best = {row["epoch"] for row in self.history} & set(existing)
        for word in ("first", *(["best"] if with_best else []), "last") if existing else ():
            (epoch,) = self._epochs_of(word, existing)
            words[epoch] = f"{words[epoch]}, {word}" if epoch in words else word
        return words


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as `-e epoch=` takes them: `[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
