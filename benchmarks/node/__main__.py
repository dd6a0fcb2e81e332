"""Measurements on a node: `python -m benchmarks.node COMMAND`."""

import argparse
import sys

from benchmarks.node import loader
from trainer.command_line import DATA, PATH, TEXT, CommandLine, integers, published
from trainer.common.errors import DONE

BENCHMARK = (("--config", PATH), ("--out", PATH), *integers(["--passes"], required=True))


def main() -> int:
    """Run one command."""
    line = CommandLine("benchmarks.node", __doc__)
    line.add("loader", _time_loaders, *BENCHMARK, *DATA, ("--loaders", TEXT), *integers(["--limit"]))
    several = (("--devices", TEXT), ("--batches", TEXT), *integers(["--threads"], required=True), ("--model", {"type": PATH["type"]}))
    line.add("inference", _time_inference, *BENCHMARK, *several)
    return line.run()


def _numbers(listed: str) -> tuple[int, ...]:
    """`1,2,4` as (1, 2, 4)."""
    return tuple(int(one) for one in listed.split(","))


def _time_loaders(arguments: argparse.Namespace) -> int:
    """Time passes over a published dataset by number of loaders; writes results.json."""
    wanted = loader.Wanted(_numbers(arguments.loaders), arguments.passes, arguments.limit)
    loader.run(arguments.config, published(arguments), wanted, arguments.out)
    return DONE


def _time_inference(arguments: argparse.Namespace) -> int:
    """Time the predictions of a snapshot (or a new model) by devices and batch size; writes results.json."""
    from trainer.worker import process

    process.load_tensorflow()
    from benchmarks.node import inference

    wanted = inference.Wanted(_numbers(arguments.devices), _numbers(arguments.batches), arguments.passes)
    inference.run(arguments.config, arguments.model, wanted, arguments.threads, arguments.out)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
