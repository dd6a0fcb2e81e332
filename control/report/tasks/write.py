"""Write the report of one run, or of several in comparison, on the control node; missing evaluations are made first."""

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control.common import command_line, configurations, project, text, written_files
from control.common.child_playbooks import Interrupted, Playbook, heeding_signals, last_lines
from control.common.command_line import as_typed
from control.common.operator_variables import boolean
from control.common.progress_line import Line
from control.common.task import Task
from control.report.facts import Run
from control.report.report import OURS, Request
from control.runs.planning import script_plan
from control.runs.results.run_names import latest_run
from control.sweep.scaling import design
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import read_json
from trainer.common.suggest import nearest
from trainer.config.schema import Report as Heading

LAST_LINES = 12


def write(task: Task) -> dict[str, Any]:
    """Find the runs, evaluate them, write the report and show it. Changes nothing if the report's source files are unchanged."""
    options = command_line.operator_options("report", task.task_vars)
    of_sweep = _chosen_sweep(options.get("sweep"))
    folders = _chosen_runs(options.get("run"), of_sweep)
    for folder in folders:
        script_plan.refuse(folder, "report.yml")
    runs, problems = [Run.read(folder) for folder in folders], []
    usual = {key: str(task.template(task.arguments.get(key)) or "") for key in ("author", "title")}
    at_the_top = _heading(options.get("set"), runs, usual)
    if boolean("evaluate", options.get("evaluate", True)) and not task.check_mode:
        problems = [problem for run in runs if (problem := _evaluate(task, run))]
        runs = [Run.read(folder) for folder in folders]
    request = Request(
        runs,
        of_sweep or (_sweep_of_that_name(runs) if runs else project.SWEEPS / project.sweeps()[-1]),
        project.ROOT,
        [project.PRIVATE / "published/code", project.PRIVATE / "dfs/code"],
        as_typed,
        at_the_top,
    )
    changed = _write(task, request)
    so_far = [_unfinished(run) for run in runs if not run.ended]
    shown = "\n\n".join([*problems, *so_far, _written(request, changed, task.check_mode)])
    return {"changed": bool(changed), "show_last": shown}


def _unfinished(run: Run) -> str:
    """Sentence on the epochs in the report of a run without an outcome."""
    done, asked = run.last["epoch"], run.record.counts["epochs"]
    return f"{run.name}: no outcome is recorded yet, so the report covers {done} of its {text.count(asked, 'epoch')}"


def _heading(given: Any, runs: Sequence[Run], usual: Mapping[str, str]) -> Heading:
    """Heading of a report: from `set`, else the first run's configuration, else the inventory's defaults.

    Raises:
        ConfigError: `set` names another key, or a text is too long or has control characters.
    """
    asked = configurations.parse_set(str(given)) if given is not None else {}
    for key in asked:
        if not key.startswith("report."):
            known = [f"report.{one.name}" for one in dataclasses.fields(Heading)]
            raise ConfigError(f"set={key}: of a run that has trained, report.yml takes {' and '.join(known)} only{nearest(key, known)}")
    recorded = (runs[0].config.get("report") or {}) if runs else {}
    layers = (usual, recorded)
    values = {f"report.{key}": value for layer in layers for key, value in layer.items() if value}
    return configurations.build(configurations.override({}, values | asked)).report


def _write(task: Task, request: Request) -> list[str]:
    """Write the report; return the names of files that are (with `--check`: would be) new, changed or gone."""
    beside = None if task.check_mode else request.subject
    with tempfile.TemporaryDirectory(prefix=".part-report-", dir=beside) as folder:
        request.make(Path(folder))
        what = written_files.changes if task.check_mode else written_files.put_changed
        return what(Path(folder), request.folder, OURS)


def _evaluate(task: Task, run: Run) -> str:
    """Evaluate missing epochs, if the hosts are available; return the obstacle, or an empty string."""
    epochs = run.testable()
    if not epochs or not run.ended:
        return ""
    if missing := [host.name for host in run.record.hosts if host.name not in task.task_vars["groups"]["all"]]:
        return (
            f"{run.name}: its test {run.noun}s were not evaluated: its hosts {', '.join(missing)} are not in this inventory; "
            "give the run's own inventory with -i"
        )
    log = project.PRIVATE / "report" / f"evaluate-{run.name}.log"
    log.unlink(missing_ok=True)
    numbers = ",".join(map(str, epochs))
    variables = {**command_line.inventory_overrides("report"), "run": run.name, "epoch": numbers}
    child = Playbook(str(project.ROOT / "evaluate.yml"), variables, log)
    line = Line(Display(), command_line.terminal())
    try:
        with heeding_signals() as asked:
            code = child.run(asked, lambda: line.update(f"evaluating epoch {numbers} of {run.name} on the test {run.noun}s"))
    except Interrupted:
        raise LockstepError(
            f"run={run.name}: interrupted while evaluating its test {run.noun}s; run report.yml again to continue"
        ) from None
    line.end()
    last = "\n".join(f"  {line}" for line in last_lines(log, LAST_LINES))
    why = f"{run.name}: its test {run.noun}s could not be evaluated, so the report lists what is missing; -e evaluate=false skips this"
    return f"{why}. The last lines of {project.relative(log)}:\n{last}" if code else ""


def _chosen_runs(asked: Any, of_sweep: Path | None = None) -> list[Path]:
    """Folders of the runs selected by `run=A` or `run=A,B,C`, each once; the latest by default.

    None if there is only a sweep, whose trials are not among the runs.

    Raises:
        LockstepError: there is no such run (with the nearest name).
    """
    if asked is None:
        alone = (of_sweep or project.sweeps()) and not any(project.RUNS.glob("*/cluster.json"))
        return [] if alone else [latest_run(project.RUNS, None)]
    names = [name.strip() for name in str(asked).split(",")]
    return [latest_run(project.RUNS, name) for name in dict.fromkeys(names)]


def _chosen_sweep(asked: Any) -> Path | None:
    """Folder of the requested sweep.

    Raises:
        LockstepError: there is no such sweep (with the nearest name).
    """
    names = sorted(path.name for path in project.SWEEPS.glob("*") if path.is_dir())
    return None if asked is None else project.SWEEPS / design.find(names, str(asked))


def _sweep_of_that_name(runs: list[Run]) -> Path | None:
    folder = project.SWEEPS / runs[0].name
    return folder if folder.is_dir() else None


def _written(request: Request, changed: list[str], check: bool) -> str:
    """Text on the report's files, and the next commands."""
    archive, where = request.folder / f"{request.subject.name}.zip", project.relative(request.folder)
    size = f"  ({archive.stat().st_size / 1e6:,.1f} MB)" if archive.is_file() else ""
    beside = f", with sweep {request.sweep.name}" if request.sweep and request.runs else ""
    written = f"{'would write' if check else 'written'} {', '.join(_grouped(changed))}"
    what = written if changed else "nothing has changed since it was written"
    head = f"Report of {', '.join(request.names)}{beside}: {what}"
    pairs = [("to read", f"{where}/README.md"), ("page", f"{where}/index.html"), ("to hand in", f"{where}/{archive.name}{size}")]
    lacking = [(f"test {run.noun}s of {run.name}", run.evaluation_command) for run in request.runs if run.testable()]
    more = [("curves", "ansible-playbook tensorboard.yml")] if request.runs else [("train", "ansible-playbook train.yml")]
    rest = [(f"the rest of {run.name}", f"ansible-playbook status.yml -e run={run.name}") for run in request.runs if not run.ended]
    commands = [*rest, *lacking, *_others(request), *more]
    return f"{head}\n{text.fields(pairs)}\n\n{text.next_commands(commands)}"


def _grouped(names: Sequence[str]) -> list[str]:
    """Text on files: names at the top level, and their number in each folder."""
    folders = Counter(f"{name.partition('/')[0]}/" for name in names if "/" in name)
    return [*(name for name in names if "/" not in name), *(f"{folder} ({text.count(files, 'file')})" for folder, files in folders.items())]


def _others(request: Request) -> list[tuple[str, str]]:
    """Suggestion of a comparison with the newest other run on the same data, if there is one."""
    if len(request.runs) != 1:
        return []
    run = request.runs[0]
    histories = sorted(project.RUNS.glob("*/history.csv"), key=lambda path: path.stat().st_mtime, reverse=True)
    others = (path.parent for path in histories if path.parent != run.folder and (path.parent / "cluster.json").is_file())
    digest = run.record.dataset["digest"]
    other = next((folder.name for folder in others if read_json(folder / "cluster.json")["dataset"]["digest"] == digest), None)
    return [("compare with another run", f"ansible-playbook report.yml -e run={run.name},{other}")] if other else []
