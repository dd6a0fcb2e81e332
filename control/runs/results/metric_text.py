"""Texts on metrics, the best epoch and the model."""

from typing import Any

from trainer.rundir.best_epoch import RESTORED, Monitor

MOST_METRICS = 3
"""Most metrics in a line."""


def metric_name(column: str) -> str:
    """Name of a metric's column of history.csv for tables and lines, as `val accuracy`."""
    return column.replace("_", " ")


def best(best: dict[str, Any] | None, by: str = "a callback") -> str:
    """The best epoch of a summary, as `12 (validation accuracy 0.8123)`; `-` if there is none. `by`: restorer of its weights."""
    if not best:
        return "-"
    values = [f"{Monitor(name, True).label} {value:.4f}" for name, value in best.items() if name not in ("epoch", RESTORED)]
    if RESTORED in best:
        values.append(f"the weights of epoch {best[RESTORED]:.0f}, which {by} restored" if best[RESTORED] else f"as {by} left it")
    return f"{best['epoch']} ({', '.join(values)})" if values else str(best["epoch"])


def evaluation(evaluated: dict[str, Any]) -> str:
    """One line for a snapshot's metrics on the test examples."""
    metrics = "".join(f"  {metric_name(name)} {value:.4f}" for name, value in list(evaluated["metrics"].items())[:MOST_METRICS])
    return f"epoch {evaluated['epoch']} on the test examples:{metrics}"


def model_name(section: dict[str, Any]) -> str:
    """Name of a model; for the user's own model, the function that makes it, as typed."""
    return f"{section['file']}:{section['function']}" if "file" in section and "function" in section else str(section["name"])
