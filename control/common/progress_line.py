"""One progress line for the user."""

import time
from typing import Any

from ansible.utils.display import Display

from control.common import command_line
from control.common.terminal_lines import printable_lines
from trainer.common.safe_text import printable

WIDTH = 80


class Line:
    """One progress line, redrawn on a terminal and printed rarely elsewhere; Ansible's Display reaches the main process."""

    def __init__(self, display: Any = None, terminal: bool | None = None, every: float = 5.0):
        """Redraw on a `terminal` (default: the user's, if it is one); otherwise print a line every `every` seconds."""
        self._display, self._every = display or Display(), every
        self._terminal = command_line.terminal() if terminal is None else terminal
        self._drawn, self._last = False, time.monotonic()

    def update(self, line: str) -> None:
        """Show the latest state."""
        if self._terminal:
            width = (command_line.columns() or WIDTH) - 1
            self._display.display(f"\r\x1b[2K{_cut(printable(line), width)}", newline=False)
            self._drawn = True
        elif time.monotonic() - self._last >= self._every:
            self._display.display(printable(line))
            self._last = time.monotonic()

    def print(self, line: str) -> None:
        """Print a line that stays."""
        self.end()
        self._display.display(printable_lines(line))
        self._last = time.monotonic()

    def end(self) -> None:
        """Remove the redrawn line."""
        if self._drawn:
            self._display.display("\r\x1b[2K", newline=False)
            self._drawn = False


def _cut(line: str, width: int) -> str:
    """A line that fits: without the last of its parts, between which are two spaces; a single part loses its end."""
    if len(line) <= width:
        return line
    parts, _, _ = line[: width + 2].rpartition("  ")
    return parts or line[:width]
