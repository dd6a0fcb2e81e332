"""The plan of a run: name, hosts, resolved configuration, exact sizes.

It follows from the command's variables, the inventory's workers and files on the control node. Nothing is written here.
"""

from pathlib import Path
from typing import Any

from control.common import configurations
from control.common.operator_variables import boolean
from control.datasets.listing import kept_columns
from control.datasets.listing.registry import Listing, Source
from control.datasets.publishing import image_check, publish, try_augment
from control.datasets.publishing.image_check import Progress
from control.remote import trainer_package
from control.runs.planning import checks, host_choice, host_needs, model_size, new_name, parameter_servers, plan_dataset, preset, resolve
from control.runs.planning.plan_request import Request
from control.runs.results import run_summary
from trainer.common.errors import ConfigError
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.data.manifest import SPLITS
from trainer.rundir import best_epoch
from trainer.rundir.layout import recorded
from trainer.rundir.schemas import read_history


def make(request: Request, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """The plan.

    Args:
        request: the user's.
        progress: called with the number of images checked so far, and their total.

    Raises:
        LockstepError: anything that can be refused before a host is touched.
    """
    switches = {name: boolean(name, request.options.get(name, False)) for name in ("detach", "queue", "quick", "evaluate", "show_config")}
    if switches["queue"] and switches["evaluate"] and "detach" not in request.options:
        raise ConfigError("evaluate=true, queue=true: the command returns once the run is queued. Fix: -e detach=false, and it waits")
    if switches["detach"] and switches["evaluate"]:
        raise ConfigError("evaluate=true, detach=true: a command that returns at once can't wait for the end; leave one of them out")
    name, existing = new_name.run_name(request)
    choice, opened = chosen(request) if existing is None and "config" not in request.options else (None, None)
    if choice and "run" not in request.options:
        name = new_name._new_name(request, choice.config)
    asked, config_name = resolve.resolve(request, existing, choice)
    # A run that the preflight refused has a configuration, but nothing in it is fixed yet.
    started = existing if recorded(existing) else None
    hosts = host_choice.choose_hosts(request, started)
    config = resolve.with_global_batch(host_choice.with_batch_sizes(asked, hosts), len(hosts))
    source, listing = opened or plan_dataset.open_dataset(config.data, request.write)
    checks.check_model(config, listing)
    published = publish.published(listing, request.packs, config.data.allow_bad_images)
    if published is None:
        listing, bad = image_check.checked(source, listing, request.packs, config.data.allow_bad_images, progress)
        published = plan_dataset.expected(listing, bad)
    checks.check_scaling(config, len(hosts), started)
    checks.check_elastic(config, len(hosts))
    if config.strategy.asynchronous:
        parameter_servers.check(config, hosts)
    sizes = schedule.counts(config, len(hosts), published["train"], published["held_out"])
    configurations.check_sizes(sizes, schedule.sharing(config, len(hosts)))
    config = plan_dataset.with_class_counts(config, listing, published, sizes, request.packs) if started is None else config
    try_augment.check(config.data, source, listing)
    dataset = plan_dataset.describe(listing, published)
    weights = model_size.initial_weights(config, request, started)
    with model_size.warned(listing.warnings):
        size = model_size.parameters(config, len(listing.classes), request, dataset.get("spec"), weights)
    code = trainer_package.TRAINER.sha256()
    compiled, left, warnings = size.pop("compiled", None), size.pop("left", []), size.pop("warnings", [])
    checks.check_compiled(compiled, request.options, config)
    checks.check_monitor(compiled, config.train.monitor)
    if config.strategy.asynchronous:
        parameter_servers.check_model(compiled)
        # A run that may be under way keeps its hosts, whatever the inventory says now.
        under_way = started is not None and run_summary.read_summary(started)["state"] in (None, "RUNNING")
        apart = parameter_servers.of_launch(started) if under_way else request.apart
        useful, idle = parameter_servers.useful(apart, published["test"], compiled)
        hosts, warnings = parameter_servers.with_roles(hosts, request.servers, useful), [*warnings, *idle]
    checks.check_classes(listing, size.pop("takes", None), config)
    if config.train.optimizer_state and not (compiled and config.train.weights):
        raise ConfigError(
            "train.optimizer_state=true: it goes on with what a compiled model's optimizer left in a file, and "
            f"{'there is none. Fix: -e weights=FILE' if compiled else 'this model is not compiled. Fix: leave it out'}"
        )
    if config.train.callbacks and not compiled:
        raise ConfigError(
            "callbacks: they act on a compiled model's optimizer; this model is not compiled. Fix: call model.compile(...), or, to end the "
            "training early, -e set=train.patience=3"
        )
    return {
        "run": name,
        "resume": started is not None,
        "config_name": config_name,
        "differing": []
        if existing is not None
        else resolve.differing(config_name, asked, configurations.parse_set(str(request.options.get("set", "")))),
        "choice": None if choice is None else vars(choice),
        "config": configurations.to_dict(config),
        "config_yaml": configurations.dump(config),
        "asked_yaml": configurations.dump(asked),
        "hosts": [host_choice.with_environment(host, config) for host in hosts],
        "spares": [host_choice.with_environment(host, config) for host in host_choice.choose_spares(request, config, hosts)],
        "counts": vars(sizes),
        "parameters": size,
        "compiled": compiled,
        "weights": weights and {**weights, "left": left},
        "class_weights": plan_dataset.class_weights(config, listing.classes),
        "needs": host_needs.needs(
            config, sum(map(listing.count, SPLITS)), sizes.epochs, size, started is not None, kept_columns.bytes_of(listing)
        ),
        "dataset": dataset,
        "code": code[:16],
        "code_sha256": code,
        "expected_digest": recorded(started).get("dataset", {}).get("digest"),
        "complete": complete(started, sizes, config.train),
        "changes": resolve.changes(started, asked, config, sizes.workers),
        "warnings": []
        if started
        else [
            *checks.batch_warnings(asked, sizes, resolve.overrides(request.options)),
            *checks.split_warnings(resolve.overrides(request.options), listing),
            *listing.warnings,
            *checks.augment_warnings(config.data),
            *warnings,
        ],
    }


def chosen(request: Request) -> tuple[preset.Choice, tuple[Source, Listing]]:
    """The configuration that fits the dataset when the command names none, and that dataset.

    A user's own model keeps the lecture's optimizer and epochs, and gets the images at their usual size.
    """
    given = resolve.overrides(request.options)
    data = configurations.build(
        configurations.override({}, {key: value for key, value in given.items() if key.partition(".")[0] == "data"})
    ).data
    source, listing = plan_dataset.open_dataset(data, request.write)
    if listing.table is not None:
        return preset.Choice(new_name.DEFAULT, {"train.steps_per_epoch": None}, ""), (source, listing)
    choice = preset.choose(source, listing)
    if "model" not in request.options:
        return choice, (source, listing)
    kept = {key: value for key, value in choice.overrides.items() if key == "data.image_size"}
    # The lecture's 70 steps per epoch do not apply to another model.
    return preset.Choice(new_name.DEFAULT, {"train.steps_per_epoch": None, **kept}, ""), (source, listing)


def complete(existing: Path | None, sizes: schedule.Counts, train: configs.Train) -> bool:
    """Whether a run has done everything asked of it, so that nothing is left to do."""
    summary = run_summary.read_summary(existing) if existing else {}
    if existing is None or summary.get("state") != "SUCCEEDED":
        return False
    all_steps = summary.get("steps", 0) >= sizes.total_steps
    if all_steps or not summary.get("stalled"):
        return bool(all_steps or summary.get("ended_early"))
    # More patience may have been asked for since.
    return best_epoch.stalled(read_history(existing / "history.csv"), train.monitor, train.patience)
