"""Shared code of this project's command lines: one function per command, one message per error."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.common.errors import FAILED, REFUSAL, LockstepError
from trainer.common.files import keep_others_out
from trainer.data.manifest import Published

PATH: Mapping[str, Any] = {"type": Path, "required": True}
TEXT: Mapping[str, Any] = {"required": True}
DATA = (("--packs", PATH), ("--manifest", TEXT))
"""A folder, and the digest that its manifest must have, because others can write to that folder."""
Option = tuple[str, Mapping[str, Any]]
Command = Callable[[argparse.Namespace], int]
"""Takes the parsed options, and returns the exit code."""


class CommandLine:
    """`python -m PACKAGE COMMAND --option ...`."""

    def __init__(self, package: str, description: str | None):
        """Start without commands."""
        self._parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
        self._commands = self._parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, function: Command, *options: Option) -> None:
        """Add a command."""
        parser = self._commands.add_parser(name, help=function.__doc__)
        parser.set_defaults(function=function)
        for option, settings in options:
            parser.add_argument(option, **settings)

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run one command; a LockstepError is printed as one message without a traceback."""
        keep_others_out()
        arguments = self._parser.parse_args(argv)
        try:
            return int(arguments.function(arguments))
        except LockstepError as error:
            # A library's progress bar, or the user's own code, may have left its line unfinished.
            print(f"\n{REFUSAL}{error}", file=sys.stderr)
            return FAILED


def integers(names: Iterable[str], **settings: Any) -> tuple[Option, ...]:
    """Options that are whole numbers."""
    return tuple((name, {"type": int, **settings}) for name in names)


def published(arguments: argparse.Namespace) -> Published:
    """The dataset that `DATA` names."""
    return Published(arguments.packs, arguments.manifest)
