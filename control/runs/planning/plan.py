"""The plan of a run: name, hosts, resolved configuration, exact sizes.

It follows from the command's variables, the inventory's workers and files on the control node. Nothing is written here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import configurations
from control.common.plan import Plan
from control.datasets.listing.kept_columns import ColumnFolder
from control.datasets.listing.registry import Listing, Source
from control.datasets.publishing import publish, try_augment
from control.datasets.publishing.image_check import ImageCheck, Progress
from control.datasets.publishing.publish import PublishedData
from control.remote import trainer_package
from control.runs.planning import checks, host_choice, host_needs, model_size, parameter_servers, plan_dataset, preset, resolve
from control.runs.planning.plan_request import DEFAULT, Request
from control.runs.results.summary import Summary
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.config.schema import Config
from trainer.data.manifest import SPLITS
from trainer.rundir import best_epoch
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.schemas import read_history


@dataclass(frozen=True)
class Selection:
    """The first phase: run, configuration and dataset."""

    name: str
    existing: Path | None
    """The run's directory, if it has one."""
    asked: Config
    config_name: str
    choice: preset.Choice | None
    source: Source
    listing: Listing


@dataclass(frozen=True)
class Resolved:
    """The second phase: the configuration with all values that follow from hosts and dataset."""

    config: Config
    listing: Listing
    published: PublishedData
    sizes: schedule.Counts
    dataset: dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """The third phase: the model, which fits the configuration."""

    size: dict[str, int]
    compiled: dict[str, Any] | None
    weights: dict[str, Any] | None
    apart: list[Host]
    warnings: list[str]


def make_plan(request: Request, progress: Progress = lambda *_: None) -> Plan:
    """The plan, to which the command adds the hosts.

    Args:
        request: the user's request.
        progress: called with the number of images checked so far, and their total.

    Raises:
        LockstepError: any error that can be found before a host is touched.
    """
    selected = _select(request)
    resolved = _resolve(request, selected, progress)
    checked = _check(request, resolved)
    config, code = resolved.config, trainer_package.TRAINER.sha256()
    asked, sizes = request.asked, resolved.sizes
    images, columns = sum(map(resolved.listing.count, SPLITS)), resolved.listing.folder
    copied = ColumnFolder(columns).size if columns else None
    started = request.started
    resumes = started is not None
    return Plan(
        run=selected.name,
        folder=request.runs / selected.name,
        resume=resumes,
        complete=_complete(started, sizes, config.train),
        config_name=selected.config_name,
        differing=[] if selected.existing else resolve.differing(selected.config_name, selected.asked, asked.settings),
        choice=vars(selected.choice) if selected.choice else None,
        config=configurations.to_dict(config),
        config_yaml=configurations.dump(config),
        asked_yaml=configurations.dump(selected.asked),
        apart=checked.apart,
        counts=vars(sizes),
        parameters=checked.size,
        compiled=checked.compiled,
        weights=checked.weights,
        class_weights=plan_dataset.class_weights(config, resolved.listing.classes) or "",
        needs=host_needs.needs(config, images, sizes.epochs, checked.size, resumes, copied),
        dataset=resolved.dataset,
        code=code[:16],
        code_sha256=code,
        expected_digest=LaunchRecord.read(started).dataset.get("digest"),
        changes=resolve.changes(started, selected.asked, config, sizes.workers),
        warnings=[] if resumes else [*checks.warnings(selected.asked, sizes, asked.overrides, resolved.listing), *checked.warnings],
    )


def _select(request: Request) -> Selection:
    name, existing = request.run_name()
    choice, opened = _chosen(request) if existing is None and request.asked.config is None else (None, None)
    if choice and request.asked.run is None:
        name = request.asked.new_name(choice.config)
    asked, config_name = resolve.resolve(request.asked, existing, choice)
    source, listing = opened or plan_dataset.open_dataset(asked.data, request.write)
    return Selection(name, existing, asked, config_name, choice, source, listing)


def _resolve(request: Request, selected: Selection, progress: Progress) -> Resolved:
    workers, listing, started = len(request.hosts), selected.listing, request.started
    config = resolve.with_global_batch(host_choice.with_batch_sizes(selected.asked, request.hosts), workers)
    checks.check_model(config, listing)
    published = publish.published(listing, request.packs, config.data.allow_bad_images)
    if published is None:
        listing, bad = ImageCheck(selected.source, listing, request.packs).readable(config.data.allow_bad_images, progress)
        published = PublishedData.expected(listing, bad)
    checks.check_scaling(config, workers, started)
    checks.check_elastic(config, workers)
    if config.strategy.asynchronous:
        parameter_servers.check_settings(config, request.hosts)
    sizes = schedule.counts(config, workers, published.train, published.held_out)
    configurations.check_sizes(sizes, schedule.sharing(config, workers))
    config = plan_dataset.with_class_counts(config, listing, published, sizes, request.packs) if started is None else config
    try_augment.check_augment(config.data, selected.source, listing)
    return Resolved(config, listing, published, sizes, plan_dataset.describe(listing, published))


def _check(request: Request, resolved: Resolved) -> Checked:
    config, listing, started = resolved.config, resolved.listing, request.started
    weights = model_size.initial_weights(config, request.asked.weights, request.code, started)
    with model_size.warned(listing.warnings):
        model = model_size.examine(config, len(listing.classes), request, resolved.dataset.get("spec"), weights)
    checks.check_compiled(model.compiled, request.asked.evaluate, request.asked.overrides, config)
    checks.check_monitor(model.compiled, config.train.monitor)
    warnings, apart = model.warnings, list[Host]()
    if config.strategy.asynchronous:
        parameter_servers.check_model(model.compiled)
        # A run that may be under way keeps its hosts, even if the inventory has changed.
        under_way = started is not None and Summary.read(started).under_way
        present = parameter_servers.of_launch(started) if under_way else request.apart
        apart, idle = parameter_servers.useful(present, resolved.published.test, model.compiled)
        warnings = [*warnings, *idle]
    checks.check_classes(listing, model.takes, config)
    checks.check_uncompiled(model.compiled, config)
    return Checked(model.size, model.compiled, weights and {**weights, "left": model.left}, apart, warnings)


def _chosen(request: Request) -> tuple[preset.Choice, tuple[Source, Listing]]:
    """The configuration that fits the dataset if the command names none, and that dataset.

    A user's own model keeps the lecture's optimizer and epochs, and gets the images at their usual size.
    """
    given = request.asked.overrides
    data = configurations.build(
        configurations.override({}, {key: value for key, value in given.items() if key.partition(".")[0] == "data"})
    ).data
    source, listing = plan_dataset.open_dataset(data, request.write)
    if listing.table is not None:
        return preset.Choice(DEFAULT, {"train.steps_per_epoch": None}, ""), (source, listing)
    choice = preset.choose(source, listing)
    if request.asked.model is None:
        return choice, (source, listing)
    kept = {key: value for key, value in choice.overrides.items() if key == "data.image_size"}
    # The lecture's 70 steps per epoch do not apply to another model.
    return preset.Choice(DEFAULT, {"train.steps_per_epoch": None, **kept}, ""), (source, listing)


def _complete(existing: Path | None, sizes: schedule.Counts, train: configs.Train) -> bool:
    """Return whether a run has done all that was requested."""
    summary = Summary.read(existing) if existing else Summary()
    if existing is None or summary.state != "SUCCEEDED":
        return False
    all_steps = (summary.steps or 0) >= sizes.total_steps
    if all_steps or not summary.stalled:
        return all_steps or summary.ended_early
    # The user may have requested more patience since.
    return best_epoch.stalled(read_history(existing / "history.csv"), train.monitor, train.patience)
