"""How long training waits for its state to be saved: for the whole write, or for a copy in memory.

    PYTHONPATH=. .venv/bin/python benchmarks/scripts/saving.py [--numbers 7400000] [--steps 300] [--rounds 7] [--folder FOLDER]

In each round the same steps (products of matrices) run without a save, after a save that is awaited, and after one that a thread writes
meanwhile. What a save costs is by how much longer the steps take with it, processor time of the thread included. The state has so many
`numbers` of 32 bits (task_cnn with momentum: 7.4 million), on the disk of `folder`.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.shared import script
from control.common import text
from trainer.checkpoint.background_save import StateSaving
from trainer.checkpoint.states import Memories, Progress, States
from trainer.network.array_group import ArrayGroup
from trainer.network.host_array import HostArray
from trainer.network.member import Member
from trainer.rundir.full_disk import Saver

WITHOUT, AWAITED, MEANWHILE = "no save", "written before the next step", "written meanwhile"
SIDE = 256
"""Rows and columns of a step's matrices."""


class Alone(ArrayGroup):
    """The only worker."""

    member = Member(0, ["127.0.0.1:1"])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See `ArrayGroup`."""
        return values


class Training:
    """Steps, and a state that is saved beside them."""

    def __init__(self, folder: Path, numbers: int, steps: int):
        self._steps, self._matrix = steps, np.ones((SIDE, SIDE), np.float32)
        self._variables, self._progress = [HostArray((numbers,))], Progress()
        states, memories = States(folder / "state", 2), Memories(folder / "memory", Alone.member, 2, [])
        saver = Saver(print, lambda: False)
        self._saving = StateSaving(Alone(), states, memories, saver, 0, "none")

    def run(self) -> None:
        """The steps, then the end of a save that is under way."""
        for _ in range(self._steps):
            self._matrix @ self._matrix
        self._saving.settle()

    def awaited(self) -> None:
        """The steps after a save that is awaited."""
        self._save()
        self._saving.settle()
        self.run()

    def meanwhile(self) -> None:
        """The steps beside a save."""
        self._save()
        self.run()

    def ways(self) -> Mapping[str, Callable[[], object]]:
        """Compared ways, by name."""
        return {WITHOUT: self.run, AWAITED: self.awaited, MEANWHILE: self.meanwhile}

    def _save(self) -> None:
        self._progress.step += 1
        self._saving.save(lambda: [one.numpy() for one in self._variables], self._progress)


def main() -> None:
    """Print a table."""
    line = script.parser(__doc__, numbers=7_400_000, steps=300, rounds=7)
    line.add_argument("--folder", type=Path, default=script.ROOT)
    arguments = line.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix=".saving-") as folder:
        training = Training(Path(folder), arguments.numbers, arguments.steps)
        print(table(script.in_turn(training.ways(), arguments.rounds)))


def table(seconds: Mapping[str, Sequence[float]]) -> str:
    """By way: the median seconds of its steps and its save, and the median over the rounds of what the save costs and its share."""
    costs = {way: [one - alone for one, alone in zip(taken, seconds[WITHOUT], strict=True)] for way, taken in seconds.items()}
    awaited = statistics.median(costs[AWAITED])
    rows = [
        [way, f"{statistics.median(taken):.3f}", f"{(cost := statistics.median(costs[way])):.3f}", f"{cost / awaited:.2f}"]
        for way, taken in seconds.items()
    ]
    return text.table(["state", "steps, s", "of which for the save, s", "of an awaited save"], rows)


if __name__ == "__main__":
    main()
