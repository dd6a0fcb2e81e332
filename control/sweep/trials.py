"""A sweep's trials, one after another: each a complete launch, measured, recorded, removed from the hosts."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control import project
from control.campaign import SUMMARY
from control.children import Playbook, last_lines
from control.runs import cluster, run_results
from control.sweep import sweep
from control.sweep.meter import Sample, joules, metering
from control.sweep.timings import FAILED, STRONG, SUCCEEDED, Timing, Trial
from trainer.errors import LockstepError
from trainer.files import read_json, write_json

MARKS = "under_way"
"""Folder with one file per trial that may have left something on the hosts."""
MEASURED = ("seconds_end_to_end", "seconds_training", "images_per_s")


@dataclass
class Bench:
    """Settings with which a sweep's trials run."""

    record: dict[str, Any]
    """The sweep's summary.json, with `folder`."""
    variables: dict[str, Any]
    """Other variables given with `-e`: the inventory's."""
    ended: Callable[[], bool]
    """Whether the command has been ended."""
    meter: str | None = None
    """Address of a metering plug for all hosts."""
    remeasure: bool = False
    """Whether the warm-up measures again how gradients are sent."""

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.record["folder"])

    def clear_leftover(self) -> None:
        """Remove what earlier commands left running or could not remove."""
        for mark in sorted((self.folder / MARKS).glob("*.json")):
            self._remove(mark.stem, **read_json(mark))

    def warm_up(self, workers: int, meanwhile: Callable[[float], None]) -> None:
        """Run a short, unrecorded trial: it fills every host's caches, and decides for all trials how gradients are sent.

        Raises:
            LockstepError: it failed, as all others would.
        """
        run = f"{self.record['name']}.{sweep.WARM_UP}"
        overrides = "train.global_batch=null,train.steps_per_epoch=10"
        options = {"workers": workers, "epochs": 1, "set": overrides, "remeasure": self.remeasure}
        summary = self._launch(run, options, meanwhile)
        if summary["state"] != SUCCEEDED:
            raise LockstepError(f"the warm-up failed, and nothing was measured:\n{self.last_lines(run)}")
        self._keep_reduction(summary)
        shutil.rmtree(self._local(run))

    def _keep_reduction(self, summary: dict[str, Any]) -> None:
        """One sweep sends gradients in one way: otherwise `auto` may choose by the number of workers, and no model of a step fits both."""
        record = read_json(self.folder / SUMMARY)
        if "reduction" not in record:
            chosen = summary["reduction"]
            how = {name: chosen[name] for name in ("sent_bytes", "transport", "sums") if name in chosen}
            write_json(self.folder / SUMMARY, {**record, "reduction": chosen["name"], **how})

    def measure(self, trial: Trial, meanwhile: Callable[[float], None]) -> Timing:
        """Run a trial; returns the row for timings.csv, without times if it failed."""
        run = sweep.run_name(self.record["name"], trial)
        batch = self.record["global_batch"] if trial.scaling == STRONG else "null"
        kept = read_json(self.folder / SUMMARY)["reduction"]
        overrides = f"train.global_batch={batch},checkpoint.every_steps={trial.checkpoint_every or 'null'},reduction.name={kept}"
        with metering(self.meter) as samples:
            summary = self._launch(run, {"workers": trial.workers, "epochs": trial.epochs, "set": overrides}, meanwhile)
        self._energy(run, summary, samples)
        succeeded = summary["state"] == SUCCEEDED
        hosts = cluster.label_names(self.record["hosts"][: trial.workers])
        measured: dict[str, Any] = {key: summary[key] if succeeded else None for key in MEASURED}
        return Timing(**asdict(trial), **measured, state=SUCCEEDED if succeeded else FAILED, hosts=" ".join(hosts))

    def _energy(self, run: str, summary: dict[str, Any], samples: list[Sample]) -> None:
        if self.meter and summary["state"] == SUCCEEDED:
            begin = read_json(self._local(run) / "cluster.json")["launched_at"]
            try:
                used = joules(samples, begin, begin + summary["seconds_end_to_end"])
            except LockstepError as error:
                # The trial itself was measured.
                Display().warning(f"{run}: {error}; its energy is not recorded")
                return
            write_json(self._local(run) / "energy.json", {"joules": round(used, 1), "samples": len(samples)})

    def last_lines(self, run: str, count: int = 25) -> str:
        """The end of the output of a trial's command."""
        return "\n".join(f"  {line}" for line in last_lines(self._log(run), count))

    def _launch(self, run: str, options: dict[str, Any], meanwhile: Callable[[float], None]) -> dict[str, Any]:
        local, begun = self._local(run), time.monotonic()
        # Results of a failed try would make this one a continuation.
        shutil.rmtree(local, ignore_errors=True)
        self._log(run).unlink(missing_ok=True)
        options = {**self.variables, **options, "run": run, "sweep": self.record["name"], "config": str(self.folder / "config.yml")}
        workers = int(options["workers"])
        write_json(self._mark(run), {"workers": workers})
        code = self._play("trial", run, options, lambda: meanwhile(time.monotonic() - begun))
        summary = run_results.read_summary(local)
        for name in ("checkpoints", "state"):
            shutil.rmtree(local / name, ignore_errors=True)
        if code != 0:
            self._remove(run, workers)
            return {**summary, "state": FAILED}
        self._mark(run).unlink()
        return summary

    def _remove(self, run: str, workers: int) -> None:
        """End a trial's processes and remove its folders on the hosts."""
        options = {**self.variables, "run": run, "sweep": self.record["name"], "workers": workers}
        if self._play("remove_trial", run, options, lambda: None) == 0:
            self._mark(run).unlink(missing_ok=True)
        else:
            where = project.relative(self._log(run))
            Display().warning(f"{run}: something of it may be left on its hosts (see {where}); the next sweep.yml tries again")

    def _play(self, name: str, run: str, options: dict[str, Any], meanwhile: Callable[[], None]) -> int:
        return Playbook(f"playbooks/stages/{name}.yml", options, self._log(run)).run(self.ended, meanwhile)

    def _mark(self, run: str) -> Path:
        return self.folder / MARKS / f"{run}.json"

    def _local(self, run: str) -> Path:
        return self.folder / "trials" / run

    def _log(self, run: str) -> Path:
        return self.folder / "logs" / f"{run}.log"
