"""Export a snapshot of a run as the next version of a model."""

from pathlib import Path
from typing import Any

from control.common import command_line, project, text
from control.common.task import Task
from control.remote import trainer_process
from control.runs.planning import script_plan
from control.runs.results.run_folder import RunFolder
from control.runs.results.run_names import latest_run
from control.serving import onnx_file
from control.serving.signature import CSV, EXAMPLES, IMAGES, TENSORS, ExportedModel, VersionFolder
from trainer.common.errors import ConfigError
from trainer.common.files import sha256_file
from trainer.rundir import layout

WHAT = {TENSORS: "arrays", CSV: "CSV lines", EXAMPLES: "tf.Example", IMAGES: "encoded images"}


def export(task: Task) -> dict[str, Any]:
    """Writes `exports/<run>/<version>/`; with `--check` only says what it would do."""
    options = command_line.operator_options("export", task.task_vars)
    run = latest_run(project.RUNS, None if options.get("run") is None else str(options["run"]))
    script_plan.refuse(run, "export.yml")
    epochs = RunFolder(run).choose_epochs(options.get("epoch", "best"))
    if len(epochs) != 1:
        raise ConfigError(f"epoch={options['epoch']}: a version holds one snapshot; name one epoch, or first, best or last")
    folder = project.EXPORTS / run.name
    same = VersionFolder(folder).newest_holds(run.name, epochs[0], sha256_file(layout.snapshot_path(run, epochs[0])))
    if same is not None and not (same.left_out.get("onnx") == onnx_file.INSTALL and onnx_file.is_installed()):
        return {"changed": False, "show_last": _shown(run, folder / str(VersionFolder(folder).numbers[-1]), False)}
    if task.check_mode:
        return {"changed": True, "show_last": f"Would export epoch {epochs[0]} of {run.name} to {project.relative(folder)}/"}
    request = {"run": str(run), "epoch": epochs[0], "into": str(folder)}
    made = trainer_process.run_trainer(["export"], f"exporting epoch {epochs[0]} of {run.name}", request)
    return {"changed": True, "show_last": _shown(run, Path(made["folder"]), True)}


def _shown(run: Path, folder: Path, changed: bool) -> str:
    exported = ExportedModel.read(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    pairs = [
        ("folder", f"{project.relative(folder)} ({size / 1e6:,.1f} MB)"),
        ("snapshot", f"epoch {exported.epoch} of {exported.run}"),
        ("takes", "; ".join(map(str, exported.inputs))),
        ("gives", "; ".join(map(str, exported.outputs))),
        ("signatures", ", ".join(f"{name} ({WHAT[name]})" for name in exported.signatures)),
        *([("ONNX", project.relative(folder / onnx_file.FILE))] if (folder / onnx_file.FILE).is_file() else []),
        *((f"no {name}", why) for name, why in exported.left_out.items()),
    ]
    if RunFolder(run).summary.under_way:
        collect = f"ansible-playbook train.yml -e run={run.name}, then this again"
        pairs.append(("warning", f"its end has not been seen: only epochs that are here were compared. Fix: {collect}"))
    older = [number for number in VersionFolder(folder.parent).numbers if number != int(folder.name)]
    begin = (
        f"{run.name} is exported as version {folder.name}" if changed else f"{run.name}: version {folder.name} already holds this snapshot"
    )
    pairs += [("older", ", ".join(map(str, older)))] if older else []
    return f"{begin}\n{text.fields(pairs)}\n\n" + text.next_commands([("serve it", f"ansible-playbook serve.yml -e run={run.name}")])
