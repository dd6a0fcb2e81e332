"""The commands of a node: `python -m trainer COMMAND`. The start scripts call it; users may too."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields

from trainer.command_line import DATA, PATH, TEXT, CommandLine, integers, published
from trainer.common.errors import DONE, PREEMPTED
from trainer.host.process import die_with_parent

NODE = (("--run", PATH), ("--host", TEXT), *DATA, ("--caches", PATH), ("--threads", {"type": int, "default": 1}))
WEIGHTS = ("--weights", {"type": PATH["type"]})
ELAPSED = ("--elapsed", {"type": float, "default": 0.0})
DEADLINE = ("--start-deadline", {"type": float, "default": 300.0})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command."""
    line = CommandLine("trainer", __doc__)
    numbers = integers(("--gpus", "--direct-port", "--generation", "--parent"), default=0)
    line.add("train", _train, *NODE, *numbers, DEADLINE, ELAPSED, WEIGHTS, ("--server", {"type": int}))
    line.add("ps", _parameter_server, *integers(("--threads", "--parent"), required=True))
    paths = (("--job", PATH), ("--root", PATH), *DATA, ("--config-sha256", TEXT), ("--caches", PATH))
    line.add("slurm", _slurm, *paths, *integers(["--port"], required=True), *integers(("--threads", "--gpus"), default=0), DEADLINE)
    counts = integers(("--classes", "--batch", "--workers", "--threads"), required=True)
    line.add("steptime", _steptime, *counts, ("--seconds", {"type": float, "default": 3.0}))
    line.add("evaluate", _evaluate, *NODE, ("--epochs", TEXT), ("--out", PATH))
    line.add("script", _script, ("script", {"help": "what is started, and where, as JSON"}))
    line.add("predict", _predict, ("--folder", PATH))
    return line.run(argv)


def _train(arguments: argparse.Namespace) -> int:
    """Train as one worker of the cluster in TF_CONFIG."""
    from trainer.worker import process

    if arguments.parent:
        die_with_parent(arguments.parent)
        # The supervisor knows what the end of the terminal means.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.quiet_tensorflow()
    given = {field.name: getattr(arguments, field.name) for field in fields(process.Launch) if field.name != "published"}
    code = process.main(process.Launch(published=published(arguments), **given))
    if code not in (DONE, PREEMPTED):
        # TensorFlow's shutdown waits for workers that may be gone.
        os._exit(code)
    return code


def _parameter_server(arguments: argparse.Namespace) -> int:
    """Keep weights for the cluster in TF_CONFIG, until the parent ends."""
    from trainer.common.errors import ClusterError
    from trainer.parameter_server.roles import Task
    from trainer.worker import process

    die_with_parent(arguments.parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The chief reads the weights from here when it saves the state.
        signal.signal(number, signal.SIG_IGN)
    process.load_tensorflow()
    task = Task.from_environment()
    if task is None:
        raise ClusterError("TF_CONFIG has no parameter servers")
    task.serve(arguments.threads)


def _slurm(arguments: argparse.Namespace) -> int:
    """Train as one task of a Slurm job, started by srun."""
    from trainer.launch import slurm as task

    threads = arguments.threads or int(os.environ.get("SLURM_CPUS_ON_NODE", len(os.sched_getaffinity(0))))
    where = (arguments.job, arguments.root, published(arguments), arguments.config_sha256, arguments.caches)
    return task.main(task.NodePaths(*where, arguments.port, threads, arguments.gpus, arguments.start_deadline))


def _script(arguments: argparse.Namespace) -> int:
    """Start a user's own script as one worker of the cluster in TF_CONFIG."""
    from trainer.launch import user_script

    return user_script.main(user_script.Script.read(json.loads(arguments.script)))


def _steptime(arguments: argparse.Namespace) -> int:
    """Read `config` (YAML) and `spec` (of columns) as JSON from standard input, time a step on this host alone, print JSON."""
    import yaml

    from trainer.config import loading
    from trainer.data.spec import Spec, of_images
    from trainer.worker import process

    process.load_tensorflow()
    from trainer.worker.step_timing import measure

    given = json.load(sys.stdin)
    config, spec = loading.build(yaml.safe_load(given["config"])), given["spec"]
    examples = of_images(config.data.image_size) if spec is None else Spec.from_json(spec)
    counts = (arguments.classes, arguments.batch, arguments.workers, arguments.threads)
    print(json.dumps(measure(config, examples, *counts, arguments.seconds)))
    return DONE


def _evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate snapshots on the test images."""
    from trainer.evaluation import evaluate as evaluating
    from trainer.rundir.metrics_log import METRICS, Metrics
    from trainer.worker import process

    process.load_tensorflow()
    epochs = [int(epoch) for epoch in arguments.epochs.split(",")]
    metrics = Metrics(arguments.out / METRICS)
    evaluating.evaluate(arguments.run, epochs, published(arguments), arguments.caches, arguments.out, metrics)
    return DONE


def _predict(arguments: argparse.Namespace) -> int:
    """Predict the examples of a folder with the snapshot in it."""
    from trainer.rundir.metrics_log import METRICS, Metrics
    from trainer.worker import process

    process.load_tensorflow()
    from trainer.evaluation import predict as predicting

    predicting.predict(arguments.folder, Metrics(arguments.folder / METRICS))
    return DONE
