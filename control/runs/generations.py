"""What the watchers of an elastic run's hosts tell each other, which are processes of their own: marks in a folder.

After a fault, workers start again as another generation. Its chief may be on another host; the newest generation is right.
"""

import re
from pathlib import Path

MARK = re.compile(r"generation-(\d{1,9})")
OVER = "over"


def note(folder: Path, number: int) -> None:
    """Tell the others that a generation was seen."""
    _mark(folder, f"generation-{number}")


def newest(folder: Path) -> int:
    """The newest generation that one of them has seen; 0 for none."""
    numbers = (MARK.fullmatch(path.name) for path in folder.glob("generation-*"))
    return max((int(number[1]) for number in numbers if number), default=0)


def note_end(folder: Path) -> None:
    """Tell the others that the run has come to its end."""
    _mark(folder, OVER)


def is_over(folder: Path) -> bool:
    """Whether the run has come to its end: nobody needs to wait for a lost host any more."""
    return (folder / OVER).exists()


def _mark(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
