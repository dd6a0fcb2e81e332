"""The plan as a block of lines."""

import shlex
from collections.abc import Sequence
from typing import Any

from control.common.plan import Plan
from control.common.text import count, fields, listed
from control.runs.hosts import run_recovery
from control.runs.results.metric_text import model_name
from trainer.common.safe_text import printable
from trainer.data.spec import Spec, noun

SHOWN_COLUMNS = 12
USUAL = ("configuration", "compiled", "inputs", "outputs", "gradients", "split", "disk")
"""Lines that only the whole plan has: they follow from other lines, or are equal in most runs."""


def plan(plan: Plan, runs: str, warnings: Sequence[str] = (), whole: bool = True) -> str:
    """The plan as a block of lines: all lines, or only requested and unusual values."""
    pairs = (_script_pairs if plan.script else _training_pairs)(plan, runs, whole)
    shown = [pair for pair in pairs if whole or pair[0] not in USUAL]
    return fields([*shown, *(("warning", warning) for warning in warnings)])


def _hosts(plan: Plan, whole: bool) -> str:
    """The plan's hosts in one line; in a `whole` plan with their addresses."""
    if not whole:
        return f"{len(plan.hosts)}: {', '.join(host.name for host in plan.hosts)}"
    hosts = ", ".join(f"{rank} {host.label}:{host.port}" for rank, host in enumerate(plan.hosts))
    chosen = "; ports chosen free for this launch" if any(host.port_chosen for host in plan.hosts) else ""
    return f"{len(plan.hosts)} (rank host address): {hosts}{chosen}"


def _script_pairs(plan: Plan, runs: str, whole: bool) -> list[tuple[str, str]]:
    """The lines of a script's plan."""
    script = plan.script
    size = f", {count(script['files'], 'file')}, {script['bytes'] / 1e6:,.1f} MB" if "files" in script else ""
    return [
        ("run", f"{plan.run} ({'starts again' if plan.resume else 'new'})"),
        ("hosts", _hosts(plan, whole)),
        ("script", f"{printable(script['file'])}{size} (sha256 {script['sha256'][:16]})"),
        *([("arguments", printable(shlex.join(script["args"])))] if script["args"] else []),
        *([("outputs", ", ".join(script["outputs"]))] if script["outputs"] else []),
        ("results", f"{runs}/{plan.run}"),
    ]


def _training_pairs(plan: Plan, runs: str, whole: bool) -> list[tuple[str, str]]:
    """The lines of a training's plan."""
    counts, config, dataset = plan.counts, plan.config, plan.dataset
    size = "x".join(str(side) for side in config["data"]["image_size"])
    digest = dataset["digest"][:16] if dataset["digest"] else "to be published now"
    columns, called = "spec" in dataset, f"{noun(dataset.get('spec'))}s"
    examples = f"{counts['train_images']:,} training, {counts['validation_images']:,} validation, {dataset['test']:,} test {called}"
    shared = ", each of one worker" if plan.roles else f" on {count(counts['workers'], 'worker')}"
    goes_on = run_recovery.recovery_text(config, plan.hosts, plan.spares)
    divided = plan.divided or _sizes(config.get("train", {}).get("batch_sizes"))
    batch = f"{counts['global_batch']} {called}{' per step' if whole else ''}{shared}{divided}"
    steps = f"{counts['steps_per_epoch']:,} per epoch x {count(counts['epochs'], 'epoch')} = {counts['total_steps']:,}"
    classes = "" if columns and not dataset["classes"] else f"{len(dataset['classes'])} classes, "
    pairs = [
        ("run", f"{plan.run} ({'continues' if plan.resume else 'new'}, configuration {plan.config_name})"),
        ("hosts", _hosts(plan, whole)),
        ("model", f"{model_name(config['model'])}, {_parameters(plan)}{'' if columns else f', input {size}'}"),
        ("dataset", f"{_source(config['data'], dataset)}{f' ({digest})' if whole else ''}: {classes}{examples}"),
        *(_columns(dataset["spec"]) if columns else []),
        *([("compiled", _compiled(plan.compiled))] if plan.compiled else []),
        *([("augmented", f"by {config['data']['augment']['file']}:augment")] if config["data"].get("augment") else []),
        *([("weights", _initial(plan.weights))] if plan.weights else []),
        *([("class weights", printable(plan.class_weights, 200))] if plan.class_weights else []),
        *([("global batch", batch)] if whole else []),
        *([("gradients", plan.gradients)] if plan.gradients else []),
        *([("strategy", plan.roles)] if plan.roles else []),
        ("steps", steps if whole else f"{steps}, of {batch}"),
        *([("recovery", goes_on)] if goes_on and (whole or config.get("recovery", {}).get("elastic")) else []),
        ("results", f"{runs}/{plan.run}"),
    ]
    if plan.differing:
        pairs.insert(1, ("settings", "; ".join(plan.differing)))
    if why := (plan.choice or {}).get("why"):
        pairs.insert(1, ("configuration", why))
    if dataset.get("note"):
        pairs.append(("split", dataset["note"]))
    if plan.needs:
        pairs.append(("disk", _disk(plan.needs, config["checkpoint"]["snapshots"])))
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
    """Inputs and outputs of a model: name, type and shape of each array."""
    shown = []
    for part, leaves in Spec.from_json(spec).parts.items():
        more = [f"{len(leaves) - SHOWN_COLUMNS:,} more"] if len(leaves) > SHOWN_COLUMNS else []
        texts = [printable(str(leaf)) for leaf in leaves[:SHOWN_COLUMNS]]
        shown.append(({"x": "inputs", "y": "outputs", "sample_weight": "weights"}[part], ", ".join([*texts, *more])))
    return shown


def _parameters(plan: Plan) -> str:
    """Text on the number of the model's parameters, and of those that train if only its last layers do."""
    total, last = plan.parameters["total"], plan.config.get("train", {}).get("last_layers")
    some = f", of which {plan.parameters['trainable']:,} in the last {'layer' if last == 1 else f'{last} layers'} train" if last else ""
    return f"{total:,} parameters{some}"


def _initial(weights: dict[str, Any]) -> str:
    """Text on the source of the initial weights, and on the layers that get none from it."""
    left = [printable(name, 40) for name in weights.get("left", ())]
    more = f", {len(left) - SHOWN_COLUMNS:,} more" if len(left) > SHOWN_COLUMNS else ""
    kept = f"; initial ones in {', '.join(left[:SHOWN_COLUMNS])}{more}" if left else ""
    return f"of {printable(weights['file'], 80)}{kept}"


def _compiled(compiled: dict[str, Any]) -> str:
    """Text on a compiled model's optimizer, loss and metrics."""
    own = f"{listed(compiled['own'])} of its own" if compiled["own"] else ""
    parts = [own, *(f"{name} {compiled[name]}" for name in ("optimizer", "loss") if compiled[name])]
    metrics = [name for name in compiled["metrics"] if name != "loss"]
    return printable(", ".join(filter(None, [*parts, f"metrics {listed(metrics)}" if metrics else ""])), 400)


def results_mb(needs: dict[str, float]) -> float:
    """Most disk space that a run's weights need, MB."""
    return needs["states_mb"] + needs["snapshots"] * needs["snapshot_mb"]


def _disk(needs: dict[str, float], policy: str | int) -> str:
    kept = f"{count(int(needs['snapshots']), 'snapshot')} of {needs['snapshot_mb']:,} MB (checkpoint.snapshots: {policy})"
    return f"at most {results_mb(needs):,.0f} MB on the chief and here: {kept}, training states {needs['states_mb']:,} MB"


def _sizes(listed: str | list[int] | None) -> str:
    if not listed:
        return ""
    return ", divided as measured before training" if isinstance(listed, str) else f" ({', '.join(map(str, listed))})"
