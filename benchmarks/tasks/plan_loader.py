"""Make and show the plan of `benchmarks/loader.yml`; pictures are generated here if no dataset was given."""

from typing import Any

from ansible.utils.display import Display

from benchmarks.analysis import benchmark, passes, pictures
from control import command_line, project, text
from control.datasets.sources import detect
from control.operator_variables import integer
from control.progress import Line
from control.runs import planning
from control.sweep import sweep
from control.task import Task
from trainer.errors import ConfigError

PICTURES = 4000


class PlanLoader(Task):
    """Returns the facts `bench`, `plan` (whose dataset is published) and `cluster`: the first host."""

    def act(self) -> dict[str, Any]:
        """Validate the options, then generate pictures, resolve, show."""
        options = command_line.operator_options("benchmarks/loader", self.task_vars)
        loaders = sweep.numbers("loaders", options.get("loaders", "1-4"))
        passes = integer("passes", options.get("passes", 5))
        limit = integer("limit", options["limit"]) if "limit" in options else None
        hosts = planning.hosts(self.task_vars)[:1]
        dataset = self._dataset(options, limit)
        if dataset is None:
            return {"show": f"Plan\n  would make {limit or PICTURES:,} pictures, and time passes over them"}
        plan = self._plan(options, hosts, dataset)
        arguments = ["--loaders", ",".join(map(str, loaders)), "--passes", str(passes)]
        arguments += ["--limit", str(limit)] if limit else []
        bench = benchmark.new(
            "loader",
            options,
            arguments,
            plan["config_yaml"],
            dataset=plan["dataset"]["name"],
            made="dataset" not in options,
            settings={"loaders": loaders, "passes": passes, "limit": limit, "image_size": plan["config"]["data"]["image_size"]},
            cache_limit_mb=plan["config"]["data"]["cache_limit_mb"],
        )
        shown = _shown(bench, plan, limit)
        return {"show": shown, "ansible_facts": {"bench": bench, "plan": plan, "cluster": plan["hosts"], "run_options": options}}

    def _dataset(self, options: dict[str, Any], limit: int | None) -> str | None:
        """The folder to read; None if it would have to be generated and nothing may be touched."""
        if "dataset" in options:
            check_folder(str(options["dataset"]))
            return str(options["dataset"])
        count = max(limit or PICTURES, pictures.CLASSES)
        folder = project.PRIVATE / "benchmarks" / f"pictures-{count}"
        if self.check_mode and not folder.is_dir():
            return None
        line = Line(Display(), command_line.terminal())
        pictures.make(folder, count, pictures.SEED, lambda finished, total: line.update(f"making pictures: {finished:,} of {total:,}"))
        line.end()
        return str(folder)

    def _plan(self, options: dict[str, Any], hosts: list[dict[str, Any]], dataset: str) -> dict[str, Any]:
        """The plan of a training run on that folder; only its dataset and configuration are used."""
        asked = {
            "run": "loader",
            "config": str(options.get("config", "task_cnn")),
            "dataset": dataset,
            "set": str(options.get("set", "")),
        }
        return planning.make(asked, hosts, "benchmarks", 1, self.arguments["packs"], not self.check_mode)


def check_folder(dataset: str) -> None:
    """Refuse datasets that never contain image files; TFRecords may, and their first images show it."""
    if detect(dataset)["source"] in ("idx", "fashion_mnist"):
        raise ConfigError(
            f"dataset={dataset}: its images are raw pixels, so loaders have nothing to decode; give a folder with train/<class>/ and "
            "test/<class>/ of JPEG files, or leave dataset= out to have one made"
        )


def _shown(bench: dict[str, Any], plan: dict[str, Any], limit: int | None) -> str:
    train, host = plan["dataset"]["train"], plan["hosts"][0]
    settings = bench["settings"]
    kind = "made-up pictures" if bench["made"] else "images"
    pairs = [
        ("host", f"{host['name']} {host['address']} (the first of the inventory)"),
        ("images", f"{min(train, limit or train):,} {kind} of {bench['dataset']}, decoded to {'x'.join(map(str, settings['image_size']))}"),
        ("loaders", f"{text.listed(settings['loaders'])}, {passes.passes(settings['passes'])} each, in turn"),
        ("results", project.relative(benchmark.RESULTS / bench["name"])),
    ]
    return f"Plan\n{text.fields(pairs)}"
