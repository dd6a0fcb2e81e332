"""Text for the terminal: tables, fields, lists, durations, the commands that come next."""

from collections.abc import Iterable, Sequence
from typing import Any

from trainer.common.safe_text import printable


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    left = [not rows or isinstance(rows[0][column], str) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [cell.ljust(width) if is_left else cell.rjust(width) for cell, width, is_left in zip(row, widths, left, strict=True)]
        return "  " + "  ".join(parts).rstrip()

    return "\n".join([line(header), *(line(row) for row in cells)])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; columns without letters are right-aligned."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    right = [not any(letter.isalpha() for row in cells for letter in row[column]) for column in range(len(header))]
    rule = ["---:" if is_right else "---" for is_right in right]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(header), rule, *cells])


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """`name  value` lines with the values aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in pairs)


def count(number: int, what: str) -> str:
    """`1 epoch`, `1,200 epochs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(parts: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for none."""
    *first, last = [str(part) for part in parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number where one came before."""
    every: dict[str, None] = {}
    for name in names:
        number, own = 2, name
        while own in every:
            own, number = f"{name}_{number}", number + 1
        every[own] = None
    return list(every)


def duration(seconds: float) -> str:
    """`75` as `1:15`, `3700` as `1:01:40`."""
    whole = max(0, int(seconds + 0.5))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


class Number(float):
    """A number with a fixed count of decimals in a table."""

    def __new__(cls, value: float, decimals: int) -> "Number":
        """Keep the count with the value."""
        self = super().__new__(cls, value)
        self.decimals = decimals
        return self

    decimals: int

    def __str__(self) -> str:
        """With thousands separators."""
        return f"{float(self):,.{self.decimals}f}"


def next_commands(commands: Sequence[tuple[str, str]]) -> str:
    """`Next` and aligned commands."""
    return "Next\n" + fields(list(commands)) if commands else ""
