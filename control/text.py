"""Text for the terminal: plan, progress, tables, failures, next commands."""

import datetime
import shlex
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from control.runs import course, outcome, supervision
from control.runs.outcome import Verdict
from trainer.common.errors import DIVERGED, signal_of
from trainer.common.safe_text import printable
from trainer.data.spec import Spec, noun
from trainer.rundir.best_epoch import RESTORED, Monitor, best_row, monitor
from trainer.rundir.schemas import VALIDATION, metric_values

MOST_METRICS = 3
"""Metrics in a line."""
MOST_COLUMNS = 8
"""Metrics in a table."""

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
SHOWN_COLUMNS = 12
NARROWEST = 7
"""Characters of a column in the table of epochs, whose later rows are not known when the first is printed."""
NATIVE = ("SIGSEGV", "SIGILL")
SHOWN_FILES = 10


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    left = [not rows or isinstance(rows[0][column], str) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [cell.ljust(width) if is_left else cell.rjust(width) for cell, width, is_left in zip(row, widths, left, strict=True)]
        return "  " + "  ".join(parts).rstrip()

    return "\n".join([line(header), *(line(row) for row in cells)])


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """`name  value` lines with the values aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in pairs)


def count(number: int, what: str) -> str:
    """`1 epoch`, `1,200 epochs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(parts: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for none."""
    *first, last = [str(part) for part in parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number where one came before."""
    every: dict[str, None] = {}
    for name in names:
        number, own = 2, name
        while own in every:
            own, number = f"{name}_{number}", number + 1
        every[own] = None
    return list(every)


def duration(seconds: float) -> str:
    """`75` as `1:15`, `3700` as `1:01:40`."""
    whole = max(0, int(seconds + 0.5))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


USUAL = ("configuration", "compiled", "inputs", "outputs", "gradients", "split", "disk")
"""Lines of a plan that only the whole plan has: what follows from the others, and what is the same in most runs."""


def plan(plan: dict[str, Any], runs: str, warnings: Sequence[str] = (), whole: bool = True) -> str:
    """The plan as a block of lines: the whole plan, or what is asked for and what is unusual."""
    pairs = (_script_pairs if "script" in plan else _training_pairs)(plan, runs, whole)
    shown = [pair for pair in pairs if whole or pair[0] not in USUAL]
    return fields([*shown, *(("warning", warning) for warning in warnings)])


def _hosts(plan: dict[str, Any], whole: bool) -> str:
    """The plan's hosts in one line; of a `whole` plan with their addresses."""
    if not whole:
        return f"{len(plan['hosts'])}: {', '.join(host['name'] for host in plan['hosts'])}"
    hosts = ", ".join(f"{rank} {host['name']} {host['address']}:{host['port']}" for rank, host in enumerate(plan["hosts"]))
    chosen = "; ports chosen free for this launch" if any(host.get("port_chosen") for host in plan["hosts"]) else ""
    return f"{len(plan['hosts'])} (rank host address): {hosts}{chosen}"


def _script_pairs(plan: dict[str, Any], runs: str, whole: bool) -> list[tuple[str, str]]:
    """The lines of a script's plan."""
    script = plan["script"]
    size = f", {count(script['files'], 'file')}, {script['bytes'] / 1e6:,.1f} MB" if "files" in script else ""
    return [
        ("run", f"{plan['run']} ({'starts again' if plan['resume'] else 'new'})"),
        ("hosts", _hosts(plan, whole)),
        ("script", f"{printable(script['file'])}{size} (sha256 {script['sha256'][:16]})"),
        *([("arguments", printable(shlex.join(script["args"])))] if script["args"] else []),
        *([("outputs", ", ".join(script["outputs"]))] if script["outputs"] else []),
        ("results", f"{runs}/{plan['run']}"),
    ]


def _training_pairs(plan: dict[str, Any], runs: str, whole: bool) -> list[tuple[str, str]]:
    """The lines of a training's plan."""
    counts, config, dataset = plan["counts"], plan["config"], plan["dataset"]
    size = "x".join(str(side) for side in config["data"]["image_size"])
    digest = dataset["digest"][:16] if dataset["digest"] else "to be published now"
    columns, called = "spec" in dataset, f"{noun(dataset.get('spec'))}s"
    examples = f"{counts['train_images']:,} training, {counts['validation_images']:,} validation, {dataset['test']:,} test {called}"
    shared = ", each of one worker" if plan.get("roles") else f" on {count(counts['workers'], 'worker')}"
    goes_on = supervision.shown(config, plan["hosts"], plan.get("spares", []))
    divided = plan.get("divided") or _sizes(config.get("train", {}).get("batch_sizes"))
    batch = f"{counts['global_batch']} {called}{' per step' if whole else ''}{shared}{divided}"
    steps = f"{counts['steps_per_epoch']:,} per epoch x {count(counts['epochs'], 'epoch')} = {counts['total_steps']:,}"
    classes = "" if columns and not dataset["classes"] else f"{len(dataset['classes'])} classes, "
    pairs = [
        ("run", f"{plan['run']} ({'continues' if plan['resume'] else 'new'}, configuration {plan['config_name']})"),
        ("hosts", _hosts(plan, whole)),
        ("model", f"{model_name(config['model'])}, {_parameters(plan)}{'' if columns else f', input {size}'}"),
        ("dataset", f"{_source(config['data'], dataset)}{f' ({digest})' if whole else ''}: {classes}{examples}"),
        *(_columns(dataset["spec"]) if columns else []),
        *([("compiled", _compiled(plan["compiled"]))] if plan.get("compiled") else []),
        *([("augmented", f"by {config['data']['augment']['file']}:augment")] if config["data"].get("augment") else []),
        *([("weights", _initial(plan["weights"]))] if plan.get("weights") else []),
        *([("class weights", printable(plan["class_weights"], 200))] if plan.get("class_weights") else []),
        *([("global batch", batch)] if whole else []),
        *([("gradients", plan["gradients"])] if plan.get("gradients") else []),
        *([("strategy", plan["roles"])] if plan.get("roles") else []),
        ("steps", steps if whole else f"{steps}, of {batch}"),
        *([("recovery", goes_on)] if goes_on and (whole or config.get("recovery", {}).get("elastic")) else []),
        ("results", f"{runs}/{plan['run']}"),
    ]
    if plan.get("differing"):
        pairs.insert(1, ("settings", "; ".join(plan["differing"])))
    if (plan.get("choice") or {}).get("why"):
        pairs.insert(1, ("configuration", plan["choice"]["why"]))
    if dataset.get("note"):
        pairs.append(("split", dataset["note"]))
    if "needs" in plan:
        pairs.append(("disk", _disk(plan["needs"], config["checkpoint"]["snapshots"])))
    if dataset["ignored"]:
        pairs.append(("ignored", f"{dataset['ignored']} entries of class folders that are no image files"))
    if dataset["left_out"]:
        pairs.append(("left out", f"{count(dataset['left_out'], 'image')} that can't be read"))
    return pairs


def _source(data: dict[str, Any], dataset: dict[str, Any]) -> str:
    """Name of a dataset, and of the function that returns its images or columns."""
    what = "columns" if "spec" in dataset else "images"
    return f"{dataset['name']}, {what} from {data['path'].rpartition('/')[2]}" if data.get("source") == "own" else str(dataset["name"])


def _columns(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """What a model gets and predicts: name, type and shape of each array."""
    shown = []
    for part, leaves in Spec.from_json(spec).parts.items():
        more = [f"{len(leaves) - SHOWN_COLUMNS:,} more"] if len(leaves) > SHOWN_COLUMNS else []
        texts = [printable(str(leaf)) for leaf in leaves[:SHOWN_COLUMNS]]
        shown.append(({"x": "inputs", "y": "outputs", "sample_weight": "weights"}[part], ", ".join([*texts, *more])))
    return shown


def _parameters(plan: dict[str, Any]) -> str:
    """How many parameters the model has; how many train, if only its last layers do."""
    total, last = plan["parameters"]["total"], plan["config"].get("train", {}).get("last_layers")
    some = f", of which {plan['parameters']['trainable']:,} in the last {'layer' if last == 1 else f'{last} layers'} train" if last else ""
    return f"{total:,} parameters{some}"


def _initial(weights: dict[str, Any]) -> str:
    """Where a training's first weights come from, and which layers have none from there."""
    left = [printable(name, 40) for name in weights.get("left", ())]
    more = f", {len(left) - SHOWN_COLUMNS:,} more" if len(left) > SHOWN_COLUMNS else ""
    kept = f"; initial ones in {', '.join(left[:SHOWN_COLUMNS])}{more}" if left else ""
    return f"of {printable(weights['file'], 80)}{kept}"


def _compiled(compiled: dict[str, Any]) -> str:
    """What a model is compiled with."""
    own = f"{listed(compiled['own'])} of its own" if compiled["own"] else ""
    parts = [own, *(f"{name} {compiled[name]}" for name in ("optimizer", "loss") if compiled[name])]
    metrics = [name for name in compiled["metrics"] if name != "loss"]
    return printable(", ".join(filter(None, [*parts, f"metrics {listed(metrics)}" if metrics else ""])), 400)


def results_mb(needs: dict[str, float]) -> float:
    """The most that a run's weights take on disk, MB."""
    return needs["states_mb"] + needs["snapshots"] * needs["snapshot_mb"]


def _disk(needs: dict[str, float], policy: str | int) -> str:
    kept = f"{count(int(needs['snapshots']), 'snapshot')} of {needs['snapshot_mb']:,} MB (checkpoint.snapshots: {policy})"
    return f"at most {results_mb(needs):,.0f} MB on the chief and here: {kept}, training states {needs['states_mb']:,} MB"


def _sizes(listed: str | list[int] | None) -> str:
    if not listed:
        return ""
    return ", divided as measured before training" if isinstance(listed, str) else f" ({', '.join(map(str, listed))})"


def progress(
    record: dict[str, Any],
    counts: dict[str, Any],
    last_epoch: dict[str, Any] | None,
    eta: float | None,
    called: str = "image",
    asked: str | None = None,
) -> str:
    """One line: epoch, step, examples (`called` so) per second, metrics, the validation metric that decides (of the last epoch), ETA.

    `asked` is `train.monitor`.
    """
    metrics, last = record["metrics"], metric_values(last_epoch) if last_epoch else {}
    decides = monitor(last or [VALIDATION + name for name in metrics], asked).metric
    value = f"{last[decides]:.4f}" if decides in last else "-"
    left = duration(eta) if eta is not None else "-"
    named = list(metrics.items())[:MOST_METRICS]
    shown = "".join(f"  {metric_name(name)} {value:.4f}" for name, value in named)
    # A model without validation is judged by a metric of training.
    decisive = "" if decides in dict(named) else f"  {metric_name(decides)} {value}"
    return (
        f"epoch {record['epoch']}/{counts['epochs']}  step {record['step']:,}/{counts['total_steps']:,}  "
        f"{record['images_per_s']:,.0f} {called}s/s  ETA {left}{shown}{decisive}"
    )


def metric_name(column: str) -> str:
    """A metric's column of history.csv as tables and lines show it: `val accuracy`."""
    return column.replace("_", " ")


def best(best: dict[str, Any] | None, by: str = "a callback") -> str:
    """The best epoch of a summary: `12 (validation accuracy 0.8123)`; `-` if there is none. `by`: who restored its weights."""
    if not best:
        return "-"
    values = [f"{Monitor(name, True).label} {value:.4f}" for name, value in best.items() if name not in ("epoch", RESTORED)]
    if RESTORED in best:
        values.append(f"the weights of epoch {best[RESTORED]:.0f}, which {by} restored" if best[RESTORED] else f"as {by} left it")
    return f"{best['epoch']} ({', '.join(values)})" if values else str(best["epoch"])


class EpochTable:
    """The table of epochs, printed while they end."""

    def __init__(self, epochs: int, called: str = "image", width: int | None = None):
        """`called`: what an example is called; `width`: columns of the terminal, beyond which metrics are left out."""
        self._epochs, self._called, self._width = epochs, called, width
        self._names: list[str] | None = None

    def lines(self, row: dict[str, Any], eta: float | None) -> list[str]:
        """A finished epoch, below a header where its columns are new; `eta`: seconds left."""
        last = [*_rates(self._called), "left"]
        names, before = _fitting(list(metric_values(row))[:MOST_COLUMNS], ["epoch", *last], self._width), self._names
        self._names = names
        columns = ["epoch", *map(metric_name, names), *last]
        cells = [f"{row['epoch']}/{self._epochs}", *_numbers(row, names), duration(eta) if eta is not None else "-"]
        shown = [cells] if names == before else [columns, cells]
        widths = [max(NARROWEST, len(title)) for title in columns]
        return ["  " + "  ".join(str(cell).rjust(width) for cell, width in zip(line, widths, strict=True)) for line in shown]


def _rates(called: str) -> list[str]:
    """Titles of the columns behind the metrics."""
    return ["seconds", f"{called}s/s"]


def _numbers(row: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """An epoch's metrics, then its seconds and examples per second."""
    return [*(Number(row[name], 4) if name in row else "-" for name in names), Number(row["seconds"], 1), Number(row["images_per_s"], 0)]


def _fitting(names: Sequence[str], others: Sequence[str], width: int | None) -> list[str]:
    """The first metrics that fit into `width` columns beside others; at least one."""
    widths = [2 + max(NARROWEST, len(metric_name(name))) for name in [*others, *names]]
    kept = [name for end, name in enumerate(names, len(others) + 1) if width is None or sum(widths[:end]) <= width]
    return kept or list(names[:1])


def evaluation(evaluated: dict[str, Any]) -> str:
    """One line for a snapshot's metrics on the test examples."""
    metrics = "".join(f"  {metric_name(name)} {value:.4f}" for name, value in list(evaluated["metrics"].items())[:MOST_METRICS])
    return f"epoch {evaluated['epoch']} on the test examples:{metrics}"


def history(rows: Sequence[dict[str, Any]], called: str = "image", best: dict[str, Any] | None = None, width: int | None = None) -> str:
    """The table of epochs; a long one keeps its first, best and last rows. `best`: as in the summary; `width` as of `EpochTable`."""
    last = _rates(called)
    shown, names = list(rows), _fitting(list(metric_values(max(reversed(rows), key=len)))[:MOST_COLUMNS], ["epoch", *last], width)
    if len(rows) > 24:
        top = (best or best_row(rows))["epoch"]
        shown = [row for row in rows if row["epoch"] <= 3 or row["epoch"] == top or row["epoch"] > rows[-1]["epoch"] - 10]
    return table(["epoch", *map(metric_name, names), *last], [[row["epoch"], *_numbers(row, names)] for row in shown])


class Number(float):
    """A number with a fixed count of decimals in a table."""

    def __new__(cls, value: float, decimals: int) -> "Number":
        """Keep the count with the value."""
        self = super().__new__(cls, value)
        self.decimals = decimals
        return self

    decimals: int

    def __str__(self) -> str:
        """With thousands separators."""
        return f"{float(self):,.{self.decimals}f}"


def result(
    run: str,
    folder: str,
    summary: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    more: Sequence[tuple[str, str]] = (),
    called: str = "image",
    commands: bool = True,
    printed: Collection[int] = (),
    width: int | None = None,
) -> str:
    """The end of a run: table of epochs, best epoch, `more` (names and values, which may be empty), where the files are, next commands.

    The table is left out if all its epochs are among those that were `printed` as they ended; `width` as of `EpochTable`.
    """
    state = f"{run}: {summary['state']}"
    if {row["epoch"] for row in rows} <= set(printed):
        # A table that grew line by line ends here.
        lines = ["", state] if printed else [state]
    else:
        lines = [state, "", history(rows, called, summary.get("best"), width), ""]
    pairs = []
    if summary.get("best"):
        pairs.append(("best epoch", best(summary["best"], summary.get("restored_by", "a callback"))))
    pairs += early(summary)
    pairs += [("time", duration_text)] if (duration_text := times(summary)) else []
    if summary.get("images_per_s"):
        pairs.append(("speed", f"{summary['images_per_s']:,.0f} {called}s/s in training steps"))
    epoch_seconds = [row["seconds"] for row in rows if row["epoch"] <= summary.get("epochs_done", len(rows))]
    if len(epoch_seconds) > 1:
        pairs.append(("mean epoch", f"{statistics.fmean(epoch_seconds):,.1f} s of training steps"))
    pairs += [pair for pair in more if pair[1]]
    if summary.get("lost"):
        pairs.append(("lost", lost(summary["lost"], summary["workers"])))
    if summary.get("took_places"):
        pairs.append(("spares", f"{listed(summary['took_places'])} took the place of a lost host"))
    if digests := summary.get("weights_sha256_by_rank"):
        pairs.append(("weights", weights(digests, summary["workers"])))
    if summary.get("inexact_because"):
        pairs.append(("not exact", "; ".join(summary["inexact_because"]) + "; the weights differ a little from those without interruption"))
    if summary.get("unsaved"):
        pairs.append(("not saved", "; ".join(f"{what} ({reason})" for what, reason in summary["unsaved"].items())))
    pairs.append(("results", folder))
    return "\n".join([*lines, fields(pairs), *(["", next_commands(after_run(run, summary, rows))] if commands else [])])


def early(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Why a run took fewer epochs than asked for, under its heading; nothing if it did not."""
    if not summary.get("ended_early"):
        return []
    best = summary["best"]["epoch"] if summary.get("best") else 0
    by = summary.get("ended_by") or "a callback"
    why = f"none since epoch {best} was better (train.patience)" if summary.get("stalled") else f"by {by}"
    return [("ended early", f"{why}, after {count(summary['epochs_done'], 'epoch')} of {summary['epochs']}")]


def script_result(run: str, folder: str, summary: dict[str, Any], output: Sequence[str]) -> str:
    """The end of a script's run: time, the files that it left, next commands."""
    left = [*output[:SHOWN_FILES], *([f"{len(output) - SHOWN_FILES:,} more"] if len(output) > SHOWN_FILES else [])]
    pairs = [
        *([("time", duration_text)] if (duration_text := times(summary)) else []),
        *([("output", f"{', '.join(left)} (in {folder}/output)")] if left else []),
        ("results", folder),
    ]
    commands = next_commands(after_run(run, summary))
    return "\n".join([f"{run}: {summary['state']}", fields(pairs), *(["", commands] if commands else [])])


def lost(hosts: Sequence[dict[str, Any]], left: int) -> str:
    """Which hosts a run went on without, and when they were last heard."""
    shown = [f"{one['host']} at {datetime.datetime.fromtimestamp(one['at']):%H:%M:%S}, step {one['step'] or 0:,}" for one in hosts]
    return f"{listed(shown)}; the run went on with {count(left, 'worker')}"


def weights(digests: Sequence[str], workers: int) -> str:
    """A sentence on the digests of the weights, one for each of the workers, or one for those that servers keep."""
    if len(set(digests)) > 1:
        return f"DIFFERENT on {len(digests)} workers, which must not happen: sha256 {', '.join(digest[:16] for digest in digests)}"
    where = f"equal on all {len(digests)} workers" if len(digests) > 1 else "of the only worker" if workers == 1 else "kept by the servers"
    return f"{where} (sha256 {digests[0][:16]})"


def model_name(section: dict[str, Any]) -> str:
    """Name of a model; for the user's own, the function that makes it, as typed."""
    return f"{section['file']}:{section['function']}" if "file" in section and "function" in section else str(section["name"])


def times(summary: dict[str, Any]) -> str:
    """The durations of a run; empty if unknown.

    A launch counts from Enter to its end, as the user experiences it: for a short training, more than twice the training time.
    """
    launch, parts = summary.get("launch"), []
    if launch:
        until = "this result" if launch["until"] == "result" else "the end of the last worker"
        parts.append(f"{duration(launch['seconds_from_enter'])} from Enter to {until}")
        if "seconds_training" in launch:
            before, trained, after = (duration(launch[f"seconds_{name}"]) for name in ("to_training", "training", "after_training"))
            parts.append(f", {trained} of it training with validation and saving ({before} before, {after} after)")
        elif "script" not in summary:
            parts.append(", no step was trained")
    elif "script" not in summary and summary.get("seconds_total"):
        parts.append(f"{duration(summary['seconds_total'])} of the chief's process, {duration(summary['seconds_training'])} of it training")
    if "script" in summary and summary.get("seconds_total"):
        parts.append(f"{', ' if parts else ''}{duration(summary['seconds_total'])} of it the script on the chief")
    if parts and summary.get("restarts") and "seconds_training" in summary:
        parts.append(f"; all {summary['restarts'] + 1} launches trained {duration(summary['seconds_training'])}")
    return "".join(parts)


def after_run(run: str, summary: dict[str, Any], rows: Sequence[dict[str, Any]] = ()) -> list[tuple[str, str]]:
    """Commands that a user may want after a run; training longer only if it is not advised against."""
    commands, failed = [], summary.get("failure") or {}
    # The same steps would diverge again.
    if summary["state"] in UNFINISHED and not failed.get("again") and failed.get("exit_code") != DIVERGED:
        commands.append(go_on(run, summary))
    if summary["state"] == "FAILED" and (option := _without_onednn(failed.get("exit_code"), failed.get("environment"))):
        commands.append(("continue without oneDNN", f"{go_on(run, summary)[1]} -e {option}"))
    if summary.get("best"):
        # Without validation there is nothing to evaluate either: the model has no loss.
        if not rows or any(name.startswith(VALIDATION) for name in rows[-1]):
            commands.append(("metrics on the test examples", f"ansible-playbook evaluate.yml -e run={run} -e epoch=first,best,last"))
        commands.append(("curves", "ansible-playbook tensorboard.yml"))
    over = summary.get("ended_early") or "script" in summary or (rows and course.judge(rows).trend is course.Trend.OVERFITS)
    if summary["state"] == "SUCCEEDED" and not over:
        commands.append(go_on(run, summary))
    if summary["state"] == "FAILED" and "started_by" not in summary:
        commands.append(("all logs", f"ansible-playbook logs.yml -e run={run}"))
    return commands


UNFINISHED = ("CANCELLED", "PREEMPTED", "FAILED")


def go_on(run: str, summary: dict[str, Any], epochs: int | None = None) -> tuple[str, str]:
    """What to do for more epochs of a run, and its command; no command while it trains.

    Args:
        run: its name.
        summary: content of summary.json.
        epochs: finished epochs, if the summary lacks them.
    """
    command = f"ansible-playbook {summary.get('started_by', 'train.yml')} -e run={run}"
    if summary.get("state") in UNFINISHED:
        return "start it again" if "script" in summary else "continue where it stopped", command
    if summary.get("state") != "SUCCEEDED":
        return "it is still training, or nobody watched its end", ""
    trained = summary["epochs"] if epochs is None else epochs
    return "train longer", f"{command} -e set=train.steps={summary['steps'] * 2}" if summary.get(
        "in_steps"
    ) else f"{command} -e epochs={trained * 2}"


def under_way(run: str) -> str:
    """Commands while a run goes on without this terminal."""
    return next_commands(
        [
            ("watch", f"ansible-playbook train.yml -e run={run}"),
            ("look", f"ansible-playbook status.yml -e run={run}"),
            ("stop", f"ansible-playbook stop.yml -e run={run}"),
        ]
    )


def next_commands(commands: Sequence[tuple[str, str]]) -> str:
    """`Next` and aligned commands."""
    return "Next\n" + fields(list(commands)) if commands else ""


def failure(verdicts: Sequence[Verdict]) -> str:
    """The root cause: first failing host, rank, exit code, its last lines; then what happened to the others. Empty if none failed."""
    cause = outcome.root_cause(verdicts)
    if cause is None:
        return ""
    lines = [f"First failure: {cause.host} (rank {cause.rank}), {_ended(cause)}", *_crash_hint(cause)]
    if cause.message:
        lines.append(f"  {cause.message}")
    if cause.last_lines:
        lines += [f"  last lines of {cause.host}/worker.log:", *(f"    {line}" for line in cause.last_lines)]
    lines += [f"  {other.host} (rank {other.rank}): {_ended(other)}" for other in verdicts if other is not cause]
    return "\n".join(lines)


def _ended(verdict: Verdict) -> str:
    """How a worker ended: its exit code, a signal and what it was doing then, or the state in which it was left."""
    code = verdict.exit_code
    if code is None:
        return verdict.state
    step = f", after step {verdict.step:,}" if verdict.step else ""
    doing = f" while {verdict.phase}{step}" if verdict.phase else ""
    return f"exit code {code}{signal_name(code, doing)}"


def _crash_hint(cause: Verdict) -> list[str]:
    """What to try after a crash of native code."""
    lines = ["  The previous launch ended the same way; continued as it is, the run will end like that again."] if cause.again else []
    if signal_of(cause.exit_code) not in NATIVE:
        return lines
    if option := _without_onednn(cause.exit_code, cause.environment):
        return [
            *lines,
            "  Native code crashed. oneDNN, TensorFlow's library for CPUs, crashes with some layers (strided 1x1 convolutions).",
            f"  Fix: train without it: -e {option}, or worker_environment: {{{ONEDNN}: 0}} in the inventory",
        ]
    return [*lines, f"  Native code crashed, but not in oneDNN ({ONEDNN}=0 is set). Fix: check what the model's own code calls"]


def _without_onednn(exit_code: int | None, environment: dict[str, str] | None) -> str:
    """The option that continues a run without oneDNN after native code crashed; empty if that does not help."""
    tried = (environment or {}).get(ONEDNN) == "0"
    return f"set=train.environment.{ONEDNN}=0" if signal_of(exit_code) in NATIVE and not tried else ""


def signal_name(code: int, doing: str = "") -> str:
    """` (killed by SIGKILL)` for a shell's exit code 137, otherwise empty."""
    name = signal_of(code)
    return f" (killed by {name}{doing})" if name else ""
