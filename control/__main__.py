"""Commands that the control node runs in their own process, because they load TensorFlow or user code: `python -m control COMMAND`."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from control.common import configurations
from trainer.command_line import DATA, PATH, TEXT, Command, CommandLine, integers, published
from trainer.common.errors import DONE
from trainer.common.plain_values import from_plain, to_plain

FLAG = {"action": "store_true"}
READING: tuple[tuple[str, dict[str, object]], ...] = (
    ("--target", {}),
    ("--feature", {"action": "append"}),
    ("--test-split", {"type": float, "required": True}),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command."""
    line = CommandLine("control", __doc__)
    line.add("plan", _plan)
    line.add("parameters", _answering("control.runs.planning.examine_model.examine", "load_tensorflow"))
    line.add("publish", _publish, ("--source", TEXT), ("--path", {}), ("--packs", PATH), ("--allow-bad-images", FLAG), *READING)
    line.add("convert", _convert, ("--source", TEXT), ("--path", PATH), ("--out", PATH), ("--digest", {}), ("--check", FLAG))
    line.add("batch", _batch, ("--config", PATH), *DATA, ("--out", PATH), *integers(("--images", "--number"), required=True))
    line.add("new-examples", _answering("control.runs.predict.prediction_job.prepare", "quiet_tensorflow"))
    line.add("export", _answering("control.serving.saved_model.export", "load_tensorflow"))
    line.add("serve", _serve, ("--folder", PATH), ("--address", TEXT), *integers(("--port", "--memory", "--seconds"), required=True))
    line.add("serve-engine", _serve_engine, ("--folder", PATH), *integers(("--memory", "--channel"), required=True))
    line.add("index-records", _index_records, ("--folder", PATH), ("--out", PATH))
    return line.run(argv)


def _answering(path: str, prepare: str) -> Command:
    """The command that calls a function, which it imports after one of `trainer.worker.process` has prepared TensorFlow."""

    def command(_: argparse.Namespace) -> int:
        from trainer.worker import process

        getattr(process, prepare)()
        module, name = path.rsplit(".", 1)
        print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.stdin.readline()))))
        return DONE

    command.__doc__ = f"Read the arguments of `{path}` as JSON from standard input; print progress lines, if any, then its result as JSON."
    return command


def _plan(arguments: argparse.Namespace) -> int:
    """Read a request as JSON on standard input and print the plan as JSON."""
    from control.runs.planning import plan as planning
    from control.runs.planning import plan_request
    from trainer.worker import process

    process.quiet_tensorflow()  # a user's own file may import it

    def progress(checked: int, total: int) -> None:
        print(f"checking the dataset: {checked:,} of {total:,} images", flush=True)

    request = from_plain(plan_request.Request, json.loads(sys.stdin.readline()))
    print(json.dumps(to_plain(planning.make_plan(request, progress))))
    return DONE


def _publish(arguments: argparse.Namespace) -> int:
    """Publish a dataset; print progress lines, then its record as JSON."""
    from dataclasses import asdict

    from control.datasets.listing.registry import open_source
    from control.datasets.publishing import publish as publishing
    from trainer.data.spec import noun

    def progress(checked: int, total: int) -> None:
        print(f"checked {checked:,} of {total:,} {called}s", flush=True)

    source = open_source(arguments.source, arguments.path, arguments.target, arguments.feature, arguments.test_split)
    called = noun(source.scan().table)
    made = publishing.publish(source, arguments.packs, arguments.allow_bad_images, progress)
    print(json.dumps(asdict(publishing.PublishedData.of(made))))
    return DONE


def _convert(arguments: argparse.Namespace) -> int:
    """Rewrite a dataset as TFRecords; print progress lines, then what was written as JSON. `--check`: only read the source."""
    from control.datasets.publishing import to_tfrecords as converting
    from trainer.worker import process

    process.quiet_tensorflow()

    def show(line: str) -> None:
        print(line, flush=True)

    given = (arguments.source, arguments.path, arguments.digest, arguments.out)
    print(json.dumps(converting.convert(*given, show, arguments.check)))
    return DONE


def _batch(arguments: argparse.Namespace) -> int:
    """Write the images of one step; print an empty JSON object."""
    from trainer.worker import process

    process.load_tensorflow()
    from control.datasets.publishing import one_batch as making

    config = configurations.build(configurations.load(arguments.config))
    making.write_batch(config, published(arguments), arguments.images, arguments.number, arguments.out)
    print(json.dumps({}))
    return DONE


def _serve(arguments: argparse.Namespace) -> int:
    """Serve a model until a signal ends it."""
    from trainer.worker import process

    process.quiet_tensorflow()
    from control.serving import server

    server.serve(arguments.folder, arguments.address, arguments.port, arguments.memory, arguments.seconds)
    return DONE


def _serve_engine(arguments: argparse.Namespace) -> int:
    """Compute the answers of `_serve`, until it closes the channel."""
    from trainer.worker import process

    process.quiet_tensorflow()
    from control.serving import engine

    engine.run(arguments.folder, arguments.memory, arguments.channel)
    return DONE


def _index_records(arguments: argparse.Namespace) -> int:
    """Write an index of the images in a folder of TFRecords."""
    from control.datasets.sources import tfrecords
    from trainer.worker import process

    process.quiet_tensorflow()
    tfrecords.write_index(arguments.folder, arguments.out)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
