"""The contents of a run's files, for a report. Writes nothing."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import configurations
from control.remote import worker_files
from control.report.blocks import code
from control.runs.results import step_profile
from control.runs.results.course import Course, judge
from control.runs.results.evaluation_table import FIRST, LAST
from control.runs.results.metric_text import model_name
from control.runs.results.summary import Summary
from trainer.common.errors import LockstepError
from trainer.data.spec import noun
from trainer.rundir.best_epoch import Monitor, judged, monitor
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.layout import existing_epochs, record_path
from trainer.rundir.schemas import read_history

MARKS = ("first", "best", "last")


@dataclass(frozen=True)
class Run:
    """A run with at least one finished epoch."""

    folder: Path
    config: dict[str, Any]
    record: LaunchRecord
    summary: Summary
    history: list[dict[str, Any]]
    """Rows of history.csv, at least one; if any row has a validation, only those that have one."""
    tests: dict[int, dict[str, Any]]
    """Newest row of evaluations.csv on the test images, by epoch."""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run directory.

        Raises:
            LockstepError: the run never started, or has no finished epoch.
        """
        name, record = folder.name, LaunchRecord.read(folder)
        if not record:
            raise LockstepError(f"run={name}: it never started (no cluster.json); start it: ansible-playbook train.yml -e run={name}")
        history = read_history(folder / "history.csv")
        if not history:
            raise LockstepError(
                f"run={name}: no finished epoch is known here, so there is nothing to report. Fix: see whether it waits, trains or has "
                f"ended: ansible-playbook status.yml -e run={name}; then fetch its results, or continue it: "
                f"ansible-playbook train.yml -e run={name}"
            )
        config = configurations.load(folder / "config.yml")
        return cls(folder, config, record, Summary.read(folder), judged(history), _tests(folder / "evaluations.csv"))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    @property
    def model(self) -> str:
        """Name of the model, or of the function that makes it."""
        return model_name(self.config["model"])

    @property
    def reduction(self) -> str:
        """Reduction of the gradients; older runs, without a record of it, have it in their configuration."""
        return str((self.summary.reduction or self.config["reduction"])["name"])

    @property
    def first(self) -> dict[str, Any]:
        """Row of the first epoch."""
        return self.history[0]

    @property
    def last(self) -> dict[str, Any]:
        """Row of the last epoch."""
        return self.history[-1]

    @property
    def monitor(self) -> Monitor:
        """Metric that decides which epoch is the best."""
        return monitor(self.history[0], self._asked)

    @property
    def _asked(self) -> str | None:
        asked: str | None = self.config.get("train", {}).get("monitor")
        return asked

    @property
    def classifies(self) -> bool:
        """True if the best epoch is the one with the highest validation accuracy."""
        return self.monitor.metric == "val_accuracy"

    @property
    def best(self) -> dict[str, Any]:
        """Row of the best epoch, as in summary.json."""
        return self.course.best

    @property
    def course(self) -> Course:
        """The verdict on the training."""
        return judge(self.history, self._asked)

    @property
    def marked(self) -> dict[int, str]:
        """Epochs that a report covers: epoch -> `first`, `best` or `last`, or several of these marks."""
        rows = (self.first, self.best, self.last)
        epochs = sorted({row["epoch"] for row in rows})
        return {epoch: ", ".join(mark for mark, row in zip(MARKS, rows, strict=True) if row["epoch"] == epoch) for epoch in epochs}

    @property
    def noun(self) -> str:
        """Noun for an example of the run's dataset."""
        return noun(self.spec)

    @property
    def spec(self) -> dict[str, Any] | None:
        """Spec of the dataset's examples; None: images."""
        spec: dict[str, Any] | None = self.record.dataset.get("spec")
        return spec

    @property
    def evaluation(self) -> dict[str, Any]:
        """Complete evaluation of the best epoch; empty unless it is the one in `tests`."""
        epoch = self.best["epoch"]
        path = record_path(self.folder / "evaluate", epoch)
        if epoch not in self.tests or not path.is_file():
            return {}
        evaluation = worker_files.evaluation(path.read_text(encoding="utf-8"))
        return evaluation if evaluation["evaluated_at"] == self.tests[epoch]["evaluated_at"] else {}

    @property
    def ended(self) -> bool:
        """True if the outcome is recorded."""
        return not self.summary.under_way

    def untested(self) -> list[int]:
        """Epochs of `marked` without a row in evaluations.csv; empty if there are no test images, or the model has no loss."""
        can = self.record.dataset["test"] and (self.record.compiled or {}).get("validates", True)
        return [epoch for epoch in self.marked if epoch not in self.tests] if can else []

    def testable(self) -> list[int]:
        """Epochs of `untested` that have a snapshot."""
        snapshots = existing_epochs(self.folder)
        return [epoch for epoch in self.untested() if epoch in snapshots]

    @property
    def evaluation_command(self) -> str:
        """The command that evaluates the missing epochs."""
        return f"ansible-playbook evaluate.yml -e run={self.name} -e epoch={','.join(map(str, self.testable()))}"

    @property
    def identified(self) -> bool:
        """True if the revision identifies the code that trained."""
        return not (self.record.revision or "+").endswith("+")

    @property
    def revision(self) -> str:
        """Text on the code that trained."""
        known = self.record.revision
        dirty = " with changes that were not committed" if known and known.endswith("+") else ""
        return f"git revision {code(known.rstrip('+'))}{dirty}" if known else "a copy outside git"

    @property
    def step_medians(self) -> dict[str, dict[str, float]]:
        """Milliseconds of each phase, by host in the order of rank; hosts without profiled steps are left out."""
        by_host = step_profile.medians(step_profile.read_profiles(self.folder))
        return {host.name: by_host[host.name] for host in self.record.hosts if host.name in by_host}

    def picture(self, kind: str) -> str:
        """Name of a picture of the run beside the report; unique if the kind has no `-`."""
        return f"pictures/{kind}-{self.name}.png"


def _tests(path: Path) -> dict[int, dict[str, Any]]:
    tests: dict[int, dict[str, Any]] = {}
    if not path.is_file():
        return tests
    with path.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            try:
                if row["split"] == "test":
                    values = {name: float(value) for name, value in row.items() if name not in (*FIRST, *LAST) and value != ""}
                    about = {"images": int(row["images"]), "evaluated_at": row["evaluated_at"]}
                    tests[int(row["epoch"])] = {**values, "metrics": values, **about}
            except (KeyError, TypeError, ValueError) as error:
                reason = f"not an evaluation ({error}); remove that line to evaluate its epoch again"
                raise LockstepError(f"{path}, line {number}: {reason}") from None
    return tests
