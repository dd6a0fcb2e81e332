"""What a person reads in the terminal: plan, progress, tables, failures, next commands."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned: text to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
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


def count(number: int, noun: str) -> str:
    """`1 epoch`, `1,200 epochs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`; nothing for none."""
    *first, last = [str(part) for part in parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def duration(seconds: float) -> str:
    """`75` as `1:15`, `3700` as `1:01:40`."""
    whole = max(0, int(seconds + 0.5))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def plan(made: dict[str, Any], runs: str, warnings: Sequence[str] = ()) -> str:
    """The plan as a block of lines."""
    counts, config, dataset = made["counts"], made["config"], made["dataset"]
    hosts = ", ".join(f"{rank} {host['name']} {host['address']}:{host['port']}" for rank, host in enumerate(made["hosts"]))
    size = "x".join(str(side) for side in config["data"]["image_size"])
    digest = dataset["digest"][:16] if dataset["digest"] else "to be published now"
    images = f"{counts['train_images']:,} training, {counts['validation_images']:,} validation, {dataset['test']:,} test images"
    pairs = [
        ("run", f"{made['run']} ({'continues' if made['resume'] else 'new'}, configuration {made['config_name']})"),
        ("hosts", f"{len(made['hosts'])} (rank host address): {hosts}"),
        ("model", f"{config['model']['name']}, {made['parameters']['total']:,} parameters, input {size}"),
        ("dataset", f"{dataset['name']} ({digest}): {len(dataset['classes'])} classes, {images}"),
        (
            "global batch",
            f"{counts['global_batch']} images a step over {counts['workers']} workers{_sizes(config.get('train', {}).get('batch_sizes'))}",
        ),
        ("steps", f"{counts['steps_per_epoch']:,} an epoch x {counts['epochs']} epochs = {counts['total_steps']:,}"),
        ("results", f"{runs}/{made['run']}"),
    ]
    if dataset["ignored"]:
        pairs.append(("ignored", f"{dataset['ignored']} entries of class folders that are no image files"))
    if dataset["left_out"]:
        pairs.append(("left out", f"{count(dataset['left_out'], 'image')} that can't be read"))
    pairs += [("warning", warning) for warning in warnings]
    return "Plan\n" + fields(pairs)


def _sizes(listed: str | list[int] | None) -> str:
    if not listed:
        return ""
    return ", divided as measured before training" if isinstance(listed, str) else f" ({', '.join(map(str, listed))})"


def progress(record: dict[str, Any], counts: dict[str, Any], last_epoch: dict[str, Any] | None, eta: float | None) -> str:
    """One line: epoch, step, images/s, loss, accuracy, validation accuracy, ETA."""
    val = f"{last_epoch['val_accuracy']:.4f}" if last_epoch else "-"
    left = duration(eta) if eta is not None else "-"
    return (
        f"epoch {record['epoch']}/{counts['epochs']}  step {record['step']:,}/{counts['total_steps']:,}  "
        f"{record['images_per_s']:,.0f} images/s  loss {record['loss']:.4f}  accuracy {record['accuracy']:.4f}  "
        f"val accuracy {val}  ETA {left}"
    )


def epoch_line(row: dict[str, Any], counts: dict[str, Any], eta: float | None) -> str:
    """One line for a finished epoch."""
    left = duration(eta) if eta is not None else "-"
    step = min(row["epoch"] * counts["steps_per_epoch"], counts["total_steps"])
    return (
        f"epoch {row['epoch']}/{counts['epochs']}  step {step:,}/{counts['total_steps']:,}  "
        f"{row['images_per_s']:,.0f} images/s  loss {row['loss']:.4f}  accuracy {row['accuracy']:.4f}  "
        f"val accuracy {row['val_accuracy']:.4f}  ETA {left}"
    )


def history(rows: Sequence[dict[str, Any]]) -> str:
    """The table of epochs; a long one keeps its first, best and last rows."""
    shown = list(rows)
    if len(rows) > 24:
        best = max(rows, key=lambda row: (row["val_accuracy"], -row["epoch"]))["epoch"]
        shown = [row for row in rows if row["epoch"] <= 3 or row["epoch"] == best or row["epoch"] > rows[-1]["epoch"] - 10]
    cells = [
        [
            row["epoch"],
            *(Number(row[key], 4) for key in ("loss", "accuracy", "val_loss", "val_accuracy")),
            Number(row["seconds"], 1),
            Number(row["images_per_s"], 0),
        ]
        for row in shown
    ]
    return table(["epoch", "loss", "accuracy", "val loss", "val accuracy", "seconds", "images/s"], cells)


class Number(float):
    """A number with a fixed count of decimals in a table."""

    def __new__(cls, value: float, decimals: int) -> "Number":
        """Keep the count beside the value."""
        self = super().__new__(cls, value)
        self.decimals = decimals
        return self

    decimals: int

    def __str__(self) -> str:
        """With thousands separated."""
        return f"{float(self):,.{self.decimals}f}"


def result(run: str, folder: str, summary: dict[str, Any], rows: Sequence[dict[str, Any]], predicted: str = "") -> str:
    """The end of a run: table of epochs, best epoch, how good the prediction was, where things lie, next commands."""
    lines = [f"{run}: {summary['state']}"]
    if rows:
        lines += ["", history(rows), ""]
    pairs = []
    if summary.get("best"):
        best = summary["best"]
        pairs.append(("best epoch", f"{best['epoch']} (validation accuracy {best['val_accuracy']:.4f})"))
    if summary.get("seconds_total"):
        speed = f", {summary['images_per_s']:,.0f} images/s" if summary.get("images_per_s") else ""
        pairs.append(("time", f"{duration(summary['seconds_total'])}, of it training {duration(summary['seconds_training'])}{speed}"))
    whole = [row["seconds"] for row in rows if row["epoch"] <= summary.get("epochs_done", len(rows))]
    if len(whole) > 1:
        pairs.append(("mean epoch", f"{statistics.fmean(whole):,.1f} s of training steps"))
    if predicted:
        pairs.append(("predicted", predicted))
    if summary.get("weights_sha256_by_rank"):
        pairs.append(("weights", f"equal on all {summary['workers']} workers (sha256 {summary['weights_sha256'][:16]})"))
    pairs.append(("results", folder))
    return "\n".join([*lines, fields(pairs), "", next_commands(after_run(run, summary))])


def after_run(run: str, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person may want to type after a run ended as it did."""
    commands, start = [], summary.get("started_by", "train.yml")
    if summary["state"] in ("CANCELLED", "PREEMPTED", "FAILED"):
        commands.append(("continue where it stopped", f"ansible-playbook {start} -e run={run}"))
    if summary.get("best"):
        commands.append(("accuracy on the test images", f"ansible-playbook evaluate.yml -e run={run} -e epoch=first,best,last"))
        commands.append(("curves", "ansible-playbook tensorboard.yml"))
    if summary["state"] == "SUCCEEDED":
        more = f"-e set=train.steps={summary['steps'] * 2}" if summary.get("in_steps") else f"-e epochs={summary['epochs'] * 2}"
        commands.append(("train longer", f"ansible-playbook {start} -e run={run} {more}"))
    if summary["state"] == "FAILED" and "started_by" not in summary:
        commands.append(("all logs", f"ansible-playbook logs.yml -e run={run}"))
    return commands


def under_way(run: str) -> str:
    """What to type while a run goes on without this terminal."""
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


def failure(verdict: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The root cause: first failing host, rank, exit code, its last lines; then what the others did."""
    code = verdict.get("exit_code")
    how = f"exit code {code}{signal_name(code)}" if code is not None else verdict["state"]
    lines = [f"First failure: {verdict['host']} (rank {verdict['rank']}), {how}"]
    if verdict.get("message"):
        lines.append(f"  {verdict['message']}")
    if verdict.get("last_lines"):
        lines += [f"  last lines of {verdict['host']}/worker.log:", *(f"    {line}" for line in verdict["last_lines"])]
    for other in others:
        code = other.get("exit_code")
        lines.append(f"  {other['host']} (rank {other['rank']}): {f'exit code {code}' if code is not None else other['state']}")
    return "\n".join(lines)


def signal_name(code: int) -> str:
    """` (killed by SIGKILL)` for a shell's exit code 137, else nothing."""
    import signal

    if code > 128:
        try:
            return f" (killed by {signal.Signals(code - 128).name})"
        except ValueError:
            return ""
    return ""
