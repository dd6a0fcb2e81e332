"""Make and show the plan of `benchmarks/inference.yml`: which model, on which host; the host is not touched."""

from pathlib import Path
from typing import Any

from benchmarks.node_results import passes
from benchmarks.shared import benchmark
from control.common import command_line, configurations, model_options, project, text
from control.common.operator_variables import integer
from control.common.task import Task
from control.runs.planning import plan_command
from control.runs.results.run_folder import RunFolder
from control.runs.results.run_names import latest_run
from control.sweep.scaling import design
from trainer.common.errors import ConfigError
from trainer.rundir.layout import snapshot_path

CONFIG = "lecture_cnn"


def plan_inference(task: Task) -> dict[str, Any]:
    """Validate the options, resolve them, show the plan. Returns the facts `bench` and `cluster`: the first host."""
    options = command_line.operator_options("benchmarks/inference", task.task_vars)
    settings = _settings_of(options)
    host = plan_command.hosts(task.task_vars)[0]
    model = _model_of(options, project.RUNS)
    bench = benchmark.new("inference", options, settings, model["config_yaml"], of=model["of"])
    bench["snapshot"] = model["snapshot"]
    pairs = [
        ("model", model["of"]),
        ("devices", f"{text.listed(settings['devices'])}, each predicts a part of the batch"),
        ("batches", f"{text.listed(settings['batches'])} images, {passes.passes(settings['passes'])} each, in turn"),
    ]
    return benchmark.planned(bench, options, host, pairs)


def _settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Devices, batch sizes, passes."""
    devices = design.numbers("devices", options.get("devices", "1,2"))
    batches = design.numbers("batches", options.get("batches", "32,128,512"))
    if batches[0] < devices[-1]:
        raise ConfigError(f"batches={options.get('batches')}: a batch of {batches[0]} can't be cut for {devices[-1]} devices; ask for more")
    return {"devices": devices, "batches": batches, "passes": integer("passes", options.get("passes", 5))}


def _model_of(options: dict[str, Any], runs: Path) -> dict[str, Any]:
    """The model that predicts: `of` (for display), `snapshot` (a path, or None) and `config_yaml`.

    Without `run` and `config` it is that of the latest run or, if there is none, a new model of the default configuration.

    Raises:
        LockstepError: a run without snapshots, an unknown configuration, both at once.
    """
    if "run" in options and "config" in options:
        raise ConfigError(f"run={options['run']}, config={options['config']}: give one of them, a trained model or a new one")
    started = any(runs.glob("*/cluster.json"))
    if "config" in options or not ("run" in options or started):
        return _new_model(str(options.get("config", CONFIG)), str(options.get("set", "")))
    if "set" in options:
        raise ConfigError(f"set={options['set']}: a run's snapshot is taken as it is; give config=NAME for a new model")
    folder = latest_run(runs, None if "run" not in options else str(options["run"]))
    epoch, rewritten = RunFolder(folder).choose_epochs("last")[0], configurations.rewritten(folder / "config.yml")
    return {"of": f"epoch {epoch} of run {folder.name}", "snapshot": str(snapshot_path(folder, epoch)), "config_yaml": rewritten}


def _new_model(name: str, overrides: str) -> dict[str, Any]:
    config = configurations.build(
        configurations.override(configurations.load(configurations.find(name)), configurations.parse_set(overrides))
    )
    model_options.options_of(config.model)
    return {
        "of": f"a new {config.model['name']} of configuration {Path(name).stem}",
        "snapshot": None,
        "config_yaml": configurations.dump(config),
    }
