"""Rewrite a dataset as TFRecords on the control node, with progress."""

from pathlib import Path
from typing import Any

from control.common import command_line, project, text
from control.common.task import Task
from control.datasets.publishing.to_tfrecords import check_kind
from control.remote import trainer_process
from trainer.common.errors import ConfigError

COMMAND = "playbooks/dataset"


def convert(task: Task) -> dict[str, Any]:
    """Check the options, convert, and show the result: a folder of TFRecords, which may exist already."""
    options = command_line.operator_options(COMMAND, task.task_vars)
    for name, example in (("source", "cifar10"), ("path", "cifar-10-python.tar.gz")):
        if name not in options:
            raise ConfigError(f"{name}: missing; give it with -e {name}=..., as in -e {name}={example}")
    kind = str(options["source"])
    check_kind(kind)
    path = Path(str(options["path"])).expanduser().resolve()
    out = Path(str(options.get("out", project.ROOT / "datasets" / kind))).expanduser().resolve()
    argv = ["convert", "--source", kind, "--path", str(path), "--out", str(out)]
    argv += ["--digest", str(options["digest"])] if "digest" in options else []
    argv += ["--check"] if task.check_mode else []
    result = trainer_process.run_trainer(argv, f"converting {kind}")
    state = "already converted to" if not result["changed"] else "would be written to" if task.check_mode else "written to"
    sizes = {name: f"{file['bytes'] / 1e6:,.1f}" if "bytes" in file else "-" for name, file in result["files"].items()}
    rows = [[name, f"{file['records']:,}", sizes[name]] for name, file in result["files"].items()]
    folder = project.relative(out)
    commands = text.next_commands([("train on it", f"ansible-playbook train.yml -e config=resnet_cifar -e dataset={folder}")])
    shown = f"{kind} from {path}: {state} {folder}\n{text.table(['file', 'records', 'MB'], rows)}\n\n{commands}"
    return {"changed": result["changed"], "show_last": shown}
