"""From Enter to the prompt of the commands around a training, of one version or two.

    .venv/bin/python benchmarks/scripts/command_time.py [--rounds 3] [--versions OLD NEW] [--data FOLDER] [ansible-playbook arguments]

Trains a run with an epoch for each round, and one for a warm-up, then gives every command once per round, in turns as `launch_time.py`
does; printed are medians, ranges, and the median of the rounds' ratios NEW / OLD. A command that keeps a result (evaluate, export) gets
another epoch in each round. `--data` is a folder of examples for `predict.yml`; without it, that command is left out. The arguments are
those of the training, as in `-e config=task_cnn`; an inventory (`-i`) is also that of the commands.
"""

import dataclasses
import time
from collections.abc import Mapping

from benchmarks.shared import script

RUN = "command-time"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status.yml",),
    "logs": ("logs.yml",),
    "stop": ("stop.yml",),
    "check": ("train.yml", "--check"),
    "evaluate": ("evaluate.yml", "-e", "epoch={epoch}"),
    "export": ("export.yml", "-e", "epoch={epoch}"),
    "predict": ("predict.yml", "-e", "input={data}"),
    "report": ("report.yml",),
}
"""Playbook and further words of each command; `{epoch}` is that of the round."""
NEW_RUN = ("check",)
"""Commands that are not about the trained run."""


def main() -> None:
    """Measure and print."""
    parser = script.parser(__doc__, versions=True, rounds=3)
    parser.add_argument("--data", default="")
    arguments, more = parser.parse_known_args()
    versions = [script.Commands(tuple(more), version) for version in arguments.versions]
    for version in versions:
        version.delete(RUN)
        version.play("train.yml", RUN, "-e", f"epochs={arguments.rounds + 1}")
    names = [name for name in COMMANDS if name != "predict" or arguments.data]
    for name in names:
        rounds = [_round(versions, name, number, arguments.data) for number in range(arguments.rounds + 1)]
        script.report(f"s, {COMMANDS[name][0]}", rounds[1:])
    for version in versions:
        version.delete(RUN)


def _round(versions: list[script.Commands], name: str, number: int, data: str) -> list[float]:
    """Seconds of a command, by version."""
    took = {version: _seconds(version, name, number, data) for version in script.in_turn(versions, number)}
    return [took[version] for version in versions]


def _seconds(version: script.Commands, name: str, number: int, data: str) -> float:
    playbook, *words = COMMANDS[name]
    given = [word.format(epoch=number + 1, data=data) for word in words]
    commands, run = (version, "") if name in NEW_RUN else (dataclasses.replace(version, more=tuple(version.inventory)), RUN)
    begun = time.monotonic()
    commands.play(playbook, run, *given)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
