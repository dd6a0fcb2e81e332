"""Plan of a sweep over settings: its trials, their hosts, the conditions for continuing the sweep, its duration."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.campaign.store import SUMMARY, refuse_other
from control.common import configurations, text
from control.common.operator_variables import integer
from control.common.plan import Plan
from control.runs.planning.resolve import with_model_defaults
from control.runs.results import metric_text
from control.sweep.scaling import design, forecast
from control.sweep.settings import trial_settings
from control.sweep.settings.trial_settings import CONFIGS, FILE, STORE, Range, Result, Settings, Space
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json, write_text
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.config.schema import Config
from trainer.data.spec import noun

OF_TRAINING = ("config", "model", "weights", "callbacks", "dataset", "epochs", "set", "allow_bad_images")
"""Operator variables of sweep.yml that define a trial's training."""
KEPT = ("vary", "trials", "workers", *OF_TRAINING)
"""Operator variables that a continued sweep keeps unless they are given again."""
OPTIONS = ("sweep", *KEPT, "seed", "measure", "preflight")
"""Operator variables of a sweep over settings."""
MOST_SHOWN = 20
"""Trials in the plan's list, except with --check."""


@dataclass(frozen=True)
class Wanted:
    """A user's request."""

    space: Space
    drawn: int | None
    """Number of combinations to draw at random; None for all."""
    set_for_all: Settings
    groups: list[list[str]]
    """Groups of hosts, by name, on which trials run side by side."""
    idle: list[str]
    """Hosts that belong to no group."""
    trains: str
    """The model's file or the configuration."""

    @classmethod
    def of(cls, options: dict[str, Any], hosts: Sequence[str]) -> "Wanted":
        """Parse the request of `sweep.yml -e vary=...`.

        Raises:
            ConfigError: an invalid variable or value.
        """
        _check_options(options)
        space = trial_settings.parse(str(options["vary"]))
        drawn = integer("trials", options["trials"]) if "trials" in options else None
        trains = str(options.get("model", options.get("config", "lecture_cnn"))).split(".py:", maxsplit=1)[0]
        return cls(space, drawn, _given(options, list(space)), *_groups(hosts, options), trains)

    @property
    def workers(self) -> int:
        """Number of hosts of a trial."""
        return len(self.groups[0])

    @property
    def names(self) -> list[str]:
        """Short names of the varied keys."""
        return list(trial_settings.short_keys(list(self.space)).values())

    def trials(self, sweep: str, base: dict[str, Any], combinations: Sequence[Settings]) -> dict[str, Config]:
        """Configurations of the trials, by the name of their run.

        Args:
            sweep: the sweep's name.
            base: the plain configuration of the first trial.
            combinations: combinations of values of the varied keys.

        Raises:
            ConfigError: an invalid value of a key, two trials with the same values, or a time limit.
        """
        planned: dict[str, Config] = {}
        for combination in combinations:
            try:
                config = _resolve(base, self.set_for_all, combination)
            except ConfigError as error:
                raise ConfigError(f"vary, {combination.label}: {error}") from None
            values = Settings.of(config, combination)
            run = values.run_name(sweep)
            if run in planned:
                raise ConfigError(f"vary: {values.label} appears twice; give each value once")
            planned[run] = config
        limit = next(iter(planned.values())).train.time_limit
        if limit is not None:
            raise ConfigError(f"train.time_limit={limit}: {trial_settings.FIXED['train.time_limit']}")
        return planned

    def record(self, name: str, options: dict[str, Any], plan: Plan) -> dict[str, Any]:
        """The content of a sweep's summary.json, without its seed and hosts."""
        return {
            "name": name,
            "varied": list(self.space),
            "drawn": self.drawn,
            "workers": self.workers,
            "groups": self.groups,
            "idle": self.idle,
            "noun": f"{noun(plan.dataset.get('spec'))}s",
            "asked": {name: value for name, value in options.items() if name in KEPT},
            "dataset": plan.dataset["digest"],
            "code": plan.code,
        }

    def shown(
        self,
        record: dict[str, Any],
        trials: Mapping[str, Config],
        rows: Sequence[Result],
        run_plan: Plan,
        folder: str,
        time: str,
        most: int | None = None,
    ) -> str:
        """The plan as a block of lines, and the list of trials.

        Args:
            record: the sweep's summary.json.
            trials: configurations by the name of their run.
            rows: rows of trials.csv.
            run_plan: plan of the first trial.
            folder: the sweep's folder, as typed.
            time: text on the expected duration.
            most: trials to list; None for all.
        """
        counts, dataset = run_plan.counts, run_plan.dataset
        done = sum(row.measured and row.run in trials for row in rows)
        how = f"drawn at random, seed {record['seed']}" if self.drawn else "every combination"
        decides = run_plan.config["train"]["monitor"] or "validation accuracy, or validation loss without one"
        examples = f"{counts['train_images']:,} training and {counts['validation_images']:,} validation {record['noun']}"
        why = (run_plan.choice or {}).get("why")
        pairs = [
            ("sweep", f"{record['name']} (configuration {run_plan.config_name})"),
            *([("configuration", why)] if why else []),
            ("varied", "; ".join(f"{key}: {_values(values)}" for key, values in self.space.items())),
            ("trials", f"{len(trials)}, {how}{f', {done} of them done already' if done else ''}"),
            ("hosts", self._hosts()),
            ("judged by", f"{decides}, in the best epoch"),
            ("model", f"{metric_text.model_name(run_plan.config['model'])}, {run_plan.parameters['total']:,} parameters"),
            ("dataset", f"{dataset['name']}: {examples}"),
            ("first trial", f"{counts['total_steps']:,} steps in {text.count(counts['epochs'], 'epoch')}"),
            ("time", time),
            ("results", folder),
            *(("warning", warning) for warning in run_plan.warnings),
        ]
        return f"{text.fields(pairs)}\n\n{self._list(trials, rows, most)}"

    def _list(self, trials: Mapping[str, Config], rows: Sequence[Result], most: int | None) -> str:
        states, cells = {row.run: row.state for row in rows}, []
        for number, (run, config) in enumerate(list(trials.items())[:most], 1):
            values = Settings.of(config, self.space).values()
            cells.append([number, *map(trial_settings.value_text, values), states.get(run, "to do")])
        more = f"\n  and {len(trials) - len(cells)} more: --check lists them" if len(trials) > len(cells) else ""
        return text.table(["trial", *self.names, "state"], cells) + more

    def _hosts(self) -> str:
        """Text on the hosts of each training, and on hosts without work."""
        at_once = f"{len(self.groups)} trials at once: " if len(self.groups) > 1 else ""
        unused = f"; not used: {' '.join(self.idle)}" if self.idle else ""
        return f"{self.workers} per trial, {at_once}{' | '.join(' '.join(group) for group in self.groups)}{unused}"


def continued(options: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Operator variables of an existing sweep: the earlier ones, unless given now.

    Args:
        options: variables typed now.
        asked: earlier variables; empty for a new sweep.
    """
    before = {name: value for name, value in asked.items() if name != "trials" or "vary" not in options}
    return before | options


def _check_options(options: dict[str, Any]) -> None:
    """Refuse operator variables that are invalid for a sweep over settings.

    Raises:
        ConfigError: the first such variable.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            takes = f"{nearest(name, OPTIONS)}; it takes: {', '.join(OPTIONS)}"
            raise ConfigError(f"{name}={value}: a sweep over settings (vary) takes no such variable{takes}")


def refuse_without_vary(options: dict[str, Any]) -> None:
    """Refuse operator variables that do not affect the duration of a training."""
    for name in ("trials", "weights"):
        if name in options:
            raise ConfigError(
                f"{name}={options[name]}: it belongs to a sweep over settings; leave it out, or say what to vary, as in "
                f"-e '{trial_settings.EXAMPLE}'"
            )


def _given(options: dict[str, Any], varied: Sequence[str]) -> Settings:
    """Keys that are set for all trials.

    Raises:
        ConfigError: one of the keys is also varied.
    """
    set_for_all = Settings(configurations.parse_set(str(options.get("set", ""))))
    if "epochs" in options:
        set_for_all["train.epochs"] = integer("epochs", options["epochs"])
    for key in set_for_all:
        if key in varied:
            raise ConfigError(f"vary: {key} is also set for all trials ({set_for_all[key]}); leave it out of one of them")
    return set_for_all


def first(options: dict[str, Any], combination: Settings) -> dict[str, Any]:
    """Operator variables with which train.yml would train the first trial."""
    values = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in combination.items()]
    typed = {name: options[name] for name in OF_TRAINING if name in options}
    return {**typed, "set": ",".join(filter(None, [str(options.get("set", "")), *values]))}


def _resolve(base: dict[str, Any], given: Settings, combination: Settings) -> Config:
    """A trial's configuration.

    Args:
        base: the plain configuration of all trials.
        given: the keys that are set for all trials.
        combination: the trial's settings.

    Raises:
        ConfigError: an unknown key, or an invalid value.
    """
    raw = configurations.override(base, combination)
    if "model.name" in combination:
        # The options written out in `base` belong to another model.
        own = {key: value for key, value in (given | combination).items() if key.startswith("model.")}
        raw["model"] = configurations.override({}, own)["model"]
    config = with_model_defaults(configurations.build(raw))
    if "train.batch_size" in combination and config.train.global_batch is not None:
        raise ConfigError(
            f"train.batch_size has no effect: train.global_batch={config.train.global_batch} decides. Fix: vary train.global_batch, "
            "or -e set=train.global_batch=null"
        )
    return config


def _values(values: tuple[Any, ...] | Range) -> str:
    return str(values) if isinstance(values, Range) else printable(", ".join(map(trial_settings.value_text, values)), 200)


def _groups(names: Sequence[str], options: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Disjoint groups of hosts that train together, and hosts without a group.

    Raises:
        ConfigError: `workers` is not a number, or is above the number of hosts.
    """
    size = integer("workers", options.get("workers", len(names)))
    if size > len(names):
        raise ConfigError(
            f"workers={size}: each trial of a sweep over settings trains on that many hosts, and the inventory has {len(names)}; "
            "add hosts or ask for fewer"
        )
    last = len(names) // size * size
    return [list(names[start : start + size]) for start in range(0, last, size)], list(names[last:])


def before(folder: Path) -> tuple[list[Result], dict[str, Any]]:
    """The rows and the summary.json of a sweep; both are empty for a new sweep."""
    path = folder / SUMMARY
    return STORE.read(folder / FILE), dict(read_json(path)) if path.is_file() else {}


def write_sweep(folder: Path, record: dict[str, Any], trials: Mapping[str, Config]) -> None:
    """Write the configurations of the first trial, with which later commands are compared, and of each trial."""
    write_text(folder / "config.yml", configurations.dump(next(iter(trials.values()))))
    for run, config in trials.items():
        write_text(folder / CONFIGS / f"{run}.yml", configurations.dump(config))
    write_json(folder / SUMMARY, record)


def refuse_changed(folder: Path, before: dict[str, Any], record: dict[str, Any], config: Config) -> None:
    """Refuse to continue a sweep under other conditions.

    Args:
        folder: the sweep's.
        before: the existing summary.json.
        record: the new content of summary.json.
        config: a trial's configuration now; varied keys may differ.
    """
    old = configurations.build(configurations.load(folder / "config.yml"))
    varied = {*record["varied"], *(_model_keys(old, config) if "model.name" in record["varied"] else ())}
    keys = [key for key in configurations.differences(configurations.to_dict(old), configurations.to_dict(config)) if key not in varied]
    others = {"seed": "seed", "workers": "number of workers per trial"}
    differing = [words for key, words in others.items() if before[key] != record[key]]
    differing += ["set of keys to vary"] if set(before["varied"]) != set(record["varied"]) else []
    refuse_other("sweep", folder.name, [*differing, *keys])


def _model_keys(*both: Config) -> set[str]:
    return {f"model.{key}" for config in both for key in config.model}


def refuse_other_kind(folder: Path, varies: bool) -> None:
    """Refuse to mix a sweep over settings with one over numbers of workers.

    Args:
        folder: the sweep's folder, which may be missing.
        varies: whether settings are to be varied.
    """
    if (folder / SUMMARY).is_file() and trial_settings.are_of(folder) != varies:
        refuse_other("sweep", folder.name, ["question (numbers of workers, or settings)"])


def estimate(left: Sequence[str], rows: Sequence[Result], run_plan: Plan, at_once: int) -> str:
    """Expected duration of the trials: from earlier trials, or from the images/s of an earlier run of the model.

    Args:
        left: trials to run.
        rows: rows of earlier trials.
        run_plan: plan of the first trial.
        at_once: number of trials that run side by side.
    """
    if not left:
        return "nothing is left to do"
    counts = run_plan.counts
    how_many, rounds = text.count(len(left), "trial"), -(-len(left) // at_once)
    if (each := design.pace(rows).expected(left[0])) is not None:
        return f"about {text.duration(each * rounds)} for {how_many}, at {text.duration(each)} each as before"
    if found := forecast.earlier(run_plan):
        run, speed = found
        seconds = speed.around_s + counts["total_steps"] * counts["global_batch"] / speed.per_s
        return f"about {text.duration(seconds * rounds)} for {how_many}, at the speed of run {run}"
    return f"{how_many}; how long is known once one has ended"
