"""Comparison of several runs: the better model, its lead, and other differences. Pure functions."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from control.common import configurations
from control.common.text import count, listed
from control.report.blocks import Picture, Section, Table, Text, code, percent, plain, points, spent
from control.report.epochs import margin
from control.report.facts import Run
from control.report.settings import ONLY_OF, Settings
from control.runs.results.metric_text import metric_name
from trainer.config import schema as configs
from trainer.data.spec import noun
from trainer.rundir.best_epoch import Monitor
from trainer.rundir.launch_record import training
from trainer.rundir.schemas import VALIDATION

SECTIONS = {"augment": "augmentation", "schedule": "learning rate", "checkpoint": "saved states", "telemetry": "telemetry"}
"""Words for sections whose names do not read well in a sentence."""
NONE = "-"
"""Placeholder for a setting that a run does not have."""


@dataclass(frozen=True)
class Comparison:
    """Several runs, at least two."""

    runs: Sequence[Run]

    @property
    def decides(self) -> Monitor | None:
        """Metric by which the runs are compared: the one that decides on the best epoch of each; None if they share no such metric."""
        decides = self.runs[0].monitor
        return decides if all(run.monitor == decides and decides.metric in run.best for run in self.runs) else None

    @cached_property
    def differing(self) -> dict[str, list[str]]:
        """All differences: name -> value in each run; settings have their dotted keys, in the configuration's order."""
        seen = [_facts(run) for run in self.runs]
        settings = [Settings(run).effective for run in self.runs]
        order = list(configurations.to_dict(configs.Config()))
        keys = sorted(dict.fromkeys(key for one in settings for key in one), key=lambda key: order.index(key.partition(".")[0]))
        rows = {what: [one[what] for one in seen] for what in seen[0]} | {key: [_setting(one, key) for one in settings] for key in keys}
        # The digest decides: one path may hold two datasets at different times, and two paths the same one. Requested and
        # finished epochs are shown once if equal.
        named = {"data.path", *(["train.epochs"] if rows["train.epochs"] == rows["finished epochs"] else [])}
        return {key: values for key, values in rows.items() if len(set(values)) > 1 and key not in named}

    def section(self, picture: str) -> Section:
        """The table, the sentence, the curves; without curves if no metric decides on all of them."""
        decides = self.decides
        rows = [[code(key) if "." in key else key, *values] for key, values in self.differing.items()]
        caption = f"Where they differ ({NONE}: has no effect there, or is not set)"
        table = [Table(caption, ["setting", *(code(run.name) for run in self.runs)], rows)] if rows else []
        alt = f"Curves of {decides.label} of {listed([run.name for run in self.runs])} over their epochs." if decides else ""
        pictures = [Picture(picture, alt)] if decides else []
        return Section("Comparison", [Text([self.better, self.beside]), self._table(), *table, *pictures])

    def _scores(self, decides: Monitor) -> tuple[str, list[tuple[float, int]]]:
        """Name of the compared metric, and each run's value and number of examples."""
        tests = [run.tests.get(run.best["epoch"], {}) for run in self.runs]
        if all(_of_test(decides) in test for test in tests):
            return _called(decides), [(test[_of_test(decides)], test["images"]) for test in tests]
        return decides.label, [(run.best[decides.metric], run.record.counts["validation_images"]) for run in self.runs]

    @property
    def better(self) -> str:
        """Sentence on the best run: its lead over the next one, and its cost."""
        runs, decides = self.runs, self.decides
        if decides is None:
            rules = listed([f"{code(run.name)} is that of {run.monitor.rule}" for run in runs])
            return f"These runs are not compared: the best epoch of {rules}."
        what, scores = self._scores(decides)
        order = sorted(range(len(runs)), key=lambda index: scores[index][0], reverse=decides.highest)
        (high, images), (low, others) = scores[order[0]], scores[order[1]]
        first, second = (runs[index] for index in order[:2])
        one, other = f"{code(first.name)} ({code(first.model)})", f"{code(second.name)} ({code(second.model)})"
        if high == low:
            return f"{one} and {other} are equal: {_shown(decides, high)} {what} in their best epochs."
        apart, chance = f"{abs(high - low):.4f}", ""
        if decides.is_share:
            apart, doubt = points(high - low), margin(high, min(images, others))
            chance = f", which may be chance (below {points(doubt)})" if high - low < doubt else ""
        lead = f"{apart} of {what} in the best epoch ({_shown(decides, high)} against {_shown(decides, low)})"
        if first.record.dataset["digest"] != second.record.dataset["digest"]:
            return (
                f"{one} reaches {_shown(decides, high)} {what} in its best epoch, {other} {_shown(decides, low)}; these are "
                f"{noun(first.spec, second.spec)}s of different datasets, so they do not show which model is better."
            )
        better_than = f"{one} is better than {other} by" if len(runs) == 2 else f"{one} is the best of {len(runs)} runs, before {other} by"
        return f"{better_than} {lead}{chance}; {_cost(first, second)}."

    @property
    def beside(self) -> str:
        """Sentence on other differences, which prevent a comparison of the models alone; every setting counts."""
        models = "model.name" in self.differing
        others = listed(_names(self.differing))
        if models and others:
            return f"Besides the model, they differ in {others}, so the model alone may not explain the difference."
        if models:
            return "Everything else is the same: dataset, workers, the trainer's code and every other setting."
        if others:
            return f"The model is the same; they differ in {others}."
        return "Model, dataset, workers, the trainer's code and all settings are the same."

    def _table(self) -> Table:
        runs, decides = self.runs, self.decides
        rate = f"{noun(*(run.spec for run in runs))}s/s"
        metrics = [f"best {decides.label}", _called(decides)] if decides else ["best epoch", "on the test examples"]
        header = ["run", "model", "parameters", "workers", "epochs", *metrics, rate, "training time"]
        return Table("The runs", header, [_row(run, decides is not None) for run in runs])


def _shown(decides: Monitor, value: float) -> str:
    """A value of a metric: a share as a percentage, anything else to four decimals."""
    return percent(value) if decides.is_share else f"{value:.4f}"


def _of_test(decides: Monitor) -> str:
    """Name of the same metric in an evaluation."""
    return decides.metric.removeprefix(VALIDATION)


def _called(decides: Monitor) -> str:
    return f"test {metric_name(_of_test(decides))}"


def _cost(run: Run, other: Run) -> str:
    """Text on the better run's cost, as multiples of the other run's."""
    parameters = run.record.parameters["total"] / other.record.parameters["total"]
    cost = [f"it has {_times(parameters, 'its parameters', 'as many parameters')}"]
    if run.summary.images_per_s and other.summary.images_per_s:
        speed = run.summary.images_per_s / other.summary.images_per_s
        rate = f"as many {noun(run.spec, other.spec)}s per second"
        cost.append(f"trained {_times(speed, rate, rate)}")
    return listed(cost)


def _times(ratio: float, of: str, equal: str) -> str:
    """Text on a ratio with two decimals, as `2.50 times ...`."""
    return equal if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times {of}"


def _row(run: Run, compared: bool) -> list[str]:
    """Cells of a run; unless the runs are `compared`, each value has the name of its metric."""
    decides, test = run.monitor, run.tests.get(run.best["epoch"], {})

    def cell(values: Mapping[str, Any], metric: str) -> str:
        if metric not in values:
            return "-"
        return f"{'' if compared else f'{metric_name(metric)} '}{_shown(decides, values[metric])}"

    rate, seconds = run.summary.images_per_s, run.summary.seconds_training
    return [
        code(run.name),
        code(run.model),
        f"{run.record.parameters['total']:,}",
        str(len(training(run.record.hosts))),
        str(run.last["epoch"]),
        f"{cell(run.best, decides.metric)} (epoch {run.best['epoch']})",
        cell(test, _of_test(decides)),
        f"{rate:,.0f}" if rate else "-",
        spent(seconds) if seconds else "-",
    ]


def _names(differing: Mapping[str, Any]) -> list[str]:
    """Keys of `differing` for a sentence; if methods differ, keys that only one method reads are left out."""
    methods = [section for section in ("model", *ONLY_OF) if f"{section}.name" in differing]
    own = {f"{section}.{key}" for section in methods for key in ONLY_OF.get(section, {})}
    return [_name(key) for key in differing if key not in own and not ("model" in methods and key.startswith("model."))]


def _name(key: str) -> str:
    """A dotted key for a sentence, `data.image_size` as `image size`; the section's name is added if the last word is too vague."""
    section, _, own = key.rpartition(".")
    if own == "name":
        return section
    words = own.replace("_", " ")
    return words if section in ("", "train", "data") else f"{SECTIONS.get(section, section)} {words}"


def _facts(run: Run) -> dict[str, str]:
    """Facts outside the configuration that affect accuracy or speed."""
    dataset, counts = run.record.dataset, run.record.counts
    return {
        "dataset": f"{plain(dataset['name'])} ({dataset['digest'][:8]})",
        "training images": f"{counts['train_images']:,}",
        "validation images": f"{counts['validation_images']:,}",
        "finished epochs": str(run.last["epoch"]),
        "workers": str(len(training(run.record.hosts))),
        "trainer's code": run.record.code,
    }


def _setting(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, NONE)
    if key == "data.image_size" and isinstance(value, list):
        return "x".join(map(str, value))
    if isinstance(value, dict) and "source" in value:
        return plain(f"{value['file']}:{value['function']}")
    if isinstance(value, str) and "\n" in value:
        # The text of a user's file, which the report shows elsewhere.
        return f"{count(len(value.splitlines()), 'line')}, sha256 {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return NONE if value in (None, [], "") else plain(str(value).lower() if isinstance(value, bool) else value)
