"""Make and show the plan of `benchmarks/loader.yml`; pictures are generated here if no dataset was given."""

from typing import Any

from ansible.utils.display import Display

from benchmarks.node_results import passes
from benchmarks.shared import benchmark, pictures
from control.common import command_line, project, text
from control.common.operator_variables import integer
from control.common.progress_line import Line
from control.common.task import Task
from control.datasets.listing.registry import detect
from control.runs.planning import plan_command
from control.runs.planning.plan_request import Inventory, OperatorRequest
from control.sweep.scaling import design
from trainer.common.errors import ConfigError

PICTURES = 4000


def plan_loader(task: Task) -> dict[str, Any]:
    """Validate the options, then generate pictures, resolve, show.

    Returns the facts `bench`, `plan` (whose dataset is published) and `cluster`: the first host.
    """
    options = command_line.operator_options("benchmarks/loader", task.task_vars)
    loaders = design.numbers("loaders", options.get("loaders", "1-4"))
    limit = integer("limit", options["limit"]) if "limit" in options else None
    settings: dict[str, Any] = {"loaders": loaders, "passes": integer("passes", options.get("passes", 5)), "limit": limit}
    hosts = plan_command.hosts(task.task_vars)[:1]
    dataset = _dataset(task, options, limit)
    if dataset is None:
        return {"show": f"Plan\n  would make {limit or PICTURES:,} pictures, and time passes over them"}
    # The plan of a training run on that folder; only its dataset and configuration are used.
    asked = {"run": "loader", "config": str(options.get("config", "task_cnn")), "dataset": dataset, "set": str(options.get("set", ""))}
    plan = plan_command.make_plan(
        OperatorRequest.of(asked), Inventory(hosts=hosts), "benchmarks", 1, task.arguments["packs"], not task.check_mode
    )
    bench = benchmark.new(
        "loader",
        options,
        settings,
        plan.config_yaml,
        dataset=plan.dataset["name"],
        made="dataset" not in options,
        image_size=plan.config["data"]["image_size"],
        cache_limit_mb=plan.config["data"]["cache_limit_mb"],
    )
    number, size = plan.dataset["train"], "x".join(map(str, bench["image_size"]))
    kind = "made-up pictures" if bench["made"] else "images"
    pairs = [
        ("images", f"{min(number, limit or number):,} {kind} of {bench['dataset']}, decoded to {size}"),
        ("loaders", f"{text.listed(loaders)}, {passes.passes(settings['passes'])} each, in turn"),
    ]
    result = benchmark.planned(bench, options, plan.hosts[0], pairs)
    result["ansible_facts"]["plan"] = plan
    return result


def _dataset(task: Task, options: dict[str, Any], limit: int | None) -> str | None:
    """The folder to read; None if it would have to be generated and nothing may be touched."""
    if "dataset" in options:
        _check_folder(str(options["dataset"]))
        return str(options["dataset"])
    count = max(limit or PICTURES, pictures.CLASSES)
    folder = project.PRIVATE / "benchmarks" / f"pictures-{count}"
    if task.check_mode and not folder.is_dir():
        return None
    line = Line(Display(), command_line.terminal())
    pictures.make_pictures(folder, count, lambda finished, total: line.update(f"making pictures: {finished:,} of {total:,}"))
    line.end()
    return str(folder)


def _check_folder(dataset: str) -> None:
    """Refuse datasets that never contain image files; TFRecords may, and their first images show it."""
    if detect(dataset)["source"] in ("idx", "fashion_mnist"):
        raise ConfigError(
            f"dataset={dataset}: its images are raw pixels, so loaders have nothing to decode; give a folder with train/<class>/ and "
            "test/<class>/ of JPEG files, or leave dataset= out to have one made"
        )
