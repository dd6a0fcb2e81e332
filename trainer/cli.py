"""The command line: `python -m trainer COMMAND`. Playbooks call it; people may.

On the control node: `plan`, `publish`, `convert`, `parameters`. On a node: `train`, `slurm`, `evaluate`, `predict`, `benchmark-loader`,
`benchmark-inference`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.errors import DONE, FAILED, REFUSAL, LockstepError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a LockstepError is one message without a traceback."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.function(arguments))
    except LockstepError as error:
        # A library's progress bar, or a person's own code, may have left its line unfinished.
        print(f"\n{REFUSAL}{error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, *options: tuple[str, dict[str, Any]]) -> None:
        sub = commands.add_parser(name, help=function.__doc__)
        sub.set_defaults(function=function)
        for option, settings in options:
            sub.add_argument(option, **settings)

    path = {"type": Path, "required": True}
    text = {"required": True}
    command("plan", plan)
    command("parameters", parameters)
    command("publish", publish, ("--source", text), ("--path", {}), ("--packs", path), ("--allow-bad-images", {"action": "store_true"}))
    node = (("--run", path), ("--host", text), ("--packs", path), ("--caches", path), ("--threads", {"type": int, "default": 1}))
    converting: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--source", text),
        ("--path", path),
        ("--out", path),
        ("--digest", {}),
        ("--check", {"action": "store_true"}),
    )
    command("convert", convert, *converting)
    numbers = ((name, {"type": int, "required": True}) for name in ("--images", "--number"))
    command("batch", batch, ("--config", path), ("--packs", path), ("--out", path), *numbers)
    command("index-records", index_records, ("--folder", path), ("--out", path))
    command("train", train, *node, ("--gpus", {"type": int, "default": 0}), ("--start-deadline", {"type": float, "default": 300.0}))
    places = (("--job", path), ("--root", path), ("--packs", path), ("--caches", path), ("--port", {"type": int, "required": True}))
    shares = ((name, {"type": int, "default": 0}) for name in ("--threads", "--gpus"))
    command("slurm", slurm, *places, *shares, ("--start-deadline", {"type": float, "default": 300.0}))
    counted = ((name, {"type": int, "required": True}) for name in ("--classes", "--batch", "--threads"))
    command("steptime", steptime, *counted, ("--seconds", {"type": float, "default": 3.0}))
    bench = (("--config", path), ("--out", path), ("--passes", {"type": int, "required": True}))
    command("benchmark-loader", benchmark_loader, *bench, ("--packs", path), ("--loaders", text), ("--limit", {"type": int}))
    several = (("--devices", text), ("--batches", text), ("--threads", {"type": int, "required": True}), ("--model", {"type": Path}))
    command("benchmark-inference", benchmark_inference, *bench, *several)
    command("evaluate", evaluate, *node, ("--epochs", text), ("--out", path))
    command("predict", predict, *node, ("--epoch", {"type": int, "required": True}), ("--image", path))
    return parser


def plan(arguments: argparse.Namespace) -> int:
    """Read a request as JSON on standard input and print the plan as JSON."""
    from trainer import plan as planning
    from trainer import worker

    worker.quiet_tensorflow()  # a person's own file may import it
    request = json.load(sys.stdin)
    for key in ("runs", "packs", "parameter_cache"):
        request[key] = Path(request[key])
    print(json.dumps(planning.make(planning.Request(**request))))
    return DONE


def parameters(arguments: argparse.Namespace) -> int:
    """Read model, image size and number of classes as JSON on standard input; print the model's parameter counts as JSON."""
    from trainer import models, worker

    worker.quiet_tensorflow()
    section = json.load(sys.stdin)
    model = models.build(section["model"], tuple(section["size"]), section["classes"])
    models.own.check_reopens(section["model"], model)
    trainable = sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
    print(json.dumps({"total": model.count_params(), "trainable": trainable}))
    return DONE


def publish(arguments: argparse.Namespace) -> int:
    """Publish a dataset; prints progress lines, then the digest and what was left out as JSON."""
    from trainer.data import publish as publishing
    from trainer.data.sources import open_source

    def progress(done: int, total: int) -> None:
        print(f"checked {done:,} of {total:,} images", flush=True)

    source = open_source(arguments.source, arguments.path)
    manifest = publishing.publish(source, arguments.source, arguments.packs, arguments.allow_bad_images, progress)
    print(json.dumps({**publishing.known_of(manifest), "bytes": sum(manifest.shards)}))
    return DONE


def convert(arguments: argparse.Namespace) -> int:
    """Rewrite a dataset as TFRecords; prints progress lines, then what was written as JSON. `--check`: only look at the source."""
    from trainer import worker
    from trainer.data import convert as converting

    worker.quiet_tensorflow()

    def told(line: str) -> None:
        print(line, flush=True)

    work = converting.looked_at if arguments.check else converting.convert
    print(json.dumps(work(arguments.source, arguments.path, arguments.digest, arguments.out, told)))
    return DONE


def batch(arguments: argparse.Namespace) -> int:
    """Write the images of one step; prints an empty JSON object."""
    from trainer import config as configs
    from trainer import worker

    worker.quiet_tensorflow()
    from trainer import batch as making

    config = configs.build(configs.load(arguments.config))
    making.write(config, arguments.packs, arguments.images, arguments.number, arguments.out)
    print(json.dumps({}))
    return DONE


def index_records(arguments: argparse.Namespace) -> int:
    """Write where the images of a folder of TFRecords are."""
    from trainer import worker
    from trainer.data import tfrecords

    worker.quiet_tensorflow()
    tfrecords.write_index(arguments.folder, arguments.out)
    return DONE


def train(arguments: argparse.Namespace) -> int:
    """Train as one worker of the cluster in TF_CONFIG."""
    from trainer import worker

    worker.quiet_tensorflow()
    where = (arguments.run, arguments.host, arguments.packs, arguments.caches)
    return worker.main(*where, arguments.threads, arguments.gpus, arguments.start_deadline)


def slurm(arguments: argparse.Namespace) -> int:
    """Train as one task of a Slurm job, started by srun."""
    from trainer import slurm as task

    threads = arguments.threads or int(os.environ.get("SLURM_CPUS_ON_NODE", len(os.sched_getaffinity(0))))
    where = (arguments.job, arguments.root, arguments.packs, arguments.caches)
    return task.main(task.Place(*where, arguments.port, threads, arguments.gpus, arguments.start_deadline))


def steptime(arguments: argparse.Namespace) -> int:
    """Read a configuration (YAML) on standard input, time its training step on this host alone, print JSON."""
    import yaml

    from trainer import config as configs
    from trainer import worker

    worker.quiet_tensorflow()
    from trainer.steptime import measure

    config = configs.build(yaml.safe_load(sys.stdin))
    print(json.dumps(measure(config, arguments.classes, arguments.batch, arguments.threads, arguments.seconds)))
    return DONE


def benchmark_loader(arguments: argparse.Namespace) -> int:
    """Time passes over a published dataset by the number of loaders; writes results.json."""
    from trainer import benchmark_loader as benchmark

    wanted = benchmark.Wanted(_numbers(arguments.loaders), arguments.passes, arguments.limit)
    benchmark.run(arguments.config, arguments.packs, wanted, arguments.out)
    return DONE


def benchmark_inference(arguments: argparse.Namespace) -> int:
    """Time the prediction of a snapshot (or of a new model) by devices and batch size; writes results.json."""
    from trainer import worker

    worker.quiet_tensorflow()
    from trainer import benchmark_inference as benchmark

    wanted = benchmark.Wanted(_numbers(arguments.devices), _numbers(arguments.batches), arguments.passes)
    benchmark.run(arguments.config, arguments.model, wanted, arguments.threads, arguments.out)
    return DONE


def _numbers(listed: str) -> tuple[int, ...]:
    return tuple(int(one) for one in listed.split(","))


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate snapshots on the test images."""
    from trainer import evaluate as evaluating
    from trainer import worker
    from trainer.telemetry import Metrics

    worker.quiet_tensorflow()
    epochs = [int(epoch) for epoch in arguments.epochs.split(",")]
    metrics = Metrics(arguments.out / "metrics.jsonl")
    evaluating.evaluate(arguments.run, epochs, arguments.packs, arguments.caches, arguments.out, metrics)
    return DONE


def predict(arguments: argparse.Namespace) -> int:
    """Print the three most probable classes of one image as JSON."""
    from trainer import evaluate as evaluating
    from trainer import worker

    worker.quiet_tensorflow()
    print(json.dumps(evaluating.predict(arguments.run, arguments.epoch, arguments.packs, arguments.image)))
    return DONE
