"""The end of a run: summary.json, written by the chief and completed by the command that sees the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from control.runs.results.outcome import IN_SUMMARY, Verdict
from trainer.common.files import read_json, write_json

FILE = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Content of a summary.json; a value that the file lacks has its default."""

    state: str | None = None
    """`SUCCEEDED`, `FAILED`, `CANCELLED`, `PREEMPTED`, `FAILED_PREFLIGHT`; `RUNNING` while no command saw the end; None without a file."""
    workers: int | None = None
    epochs: int | None = None
    """Number of requested epochs."""
    epochs_done: int | None = None
    steps: int | None = None
    in_steps: bool = False
    """True if the run's length was requested in steps."""
    restarts: int = 0
    ended_early: bool = False
    ended_by: str = "a callback"
    stalled: bool = False
    """True if `train.patience` ended it."""
    reduction: Mapping[str, Any] = field(default_factory=dict)
    """Reduction of the gradients: `name`, `why` and more (`cost_model.Choice`)."""
    shares: list[int] | None = None
    """Each worker's share of a step; None: equal shares."""
    seconds_total: float | None = None
    seconds_training: float | None = None
    seconds_end_to_end: float | None = None
    images_per_s: float | None = None
    predicted_images_per_s: float | None = None
    best: dict[str, Any] | None = None
    """The best epoch's number, and the deciding metric."""
    restored_by: str = "a callback"
    weights_sha256: str | None = None
    weights_sha256_by_rank: Sequence[str] = ()
    inexact_because: Sequence[str] = ()
    unsaved: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be saved, with the reason."""
    launch: Mapping[str, Any] | None = None
    """Durations of the last launch (`Verdicts.launch_times`)."""
    lost: Sequence[Mapping[str, Any]] = ()
    """Hosts without which it went on (`Verdicts.lost`)."""
    took_places: Sequence[str] = ()
    """Spares that trained."""
    failure: Verdict | None = None
    """The root cause."""
    script: str | None = None
    """The user's script, if the run executes one."""
    started_by: str = "train.yml"
    """The playbook that continues the run."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """The file's whole content."""

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> "Summary":
        """The summary in the content of a file."""
        known = {one.name for one in fields(cls)} - {"failure", "written"}
        given = {name: value for name, value in written.items() if name in known and value not in (None, "")}
        return cls(**given, failure=_failure(written.get("failure")), written=written)

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """The summary in a run's folder; one without a state before there is a file."""
        return cls.of(read_json(folder / FILE) if (folder / FILE).is_file() else {})

    def write(self, folder: Path) -> None:
        """Write the whole content into a run's folder."""
        write_json(folder / FILE, self.written)

    def changed(self, **values: Any) -> "Summary":
        """The summary with other values."""
        return Summary.of({**self.written, **values})

    @property
    def under_way(self) -> bool:
        """True if no outcome is recorded."""
        return self.state in (None, "RUNNING")

    @property
    def unfinished(self) -> bool:
        """True if the run ended before its work was done."""
        return self.state in ("CANCELLED", "PREEMPTED", "FAILED")


def _failure(written: Any) -> Verdict | None:
    """The root cause, as the end of a command wrote it."""
    if not isinstance(written, dict) or not {"host", "rank", "state"} <= written.keys():
        return None
    return Verdict(**{name: value for name, value in written.items() if name in IN_SUMMARY})
