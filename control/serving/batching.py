"""Requests that arrive while a model computes are computed together next: no request waits for others to come."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from control.serving.protocol import Arrays

LARGEST = 256
"""Rows of one call of the model, as in prediction."""
Call = Callable[[Arrays], Arrays]


class Overloaded(Exception):
    """So many rows wait already that another request would wait too long."""


@dataclass(eq=False)
class _Waiting:
    call: Call
    arrays: Arrays
    answer: "asyncio.Future[Arrays]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests of one kind fit into one call."""
        return (self.call, *((name, array.dtype.str, array.shape[1:]) for name, array in self.arrays.items()))


class Batcher:
    """Calls models in one thread; TensorFlow itself uses all cores."""

    def __init__(self, most_rows: int = 4096, note: Callable[[int], None] = lambda _: None):
        """`most_rows`: that may wait. `note` is told the rows of each call."""
        self._waiting: list[_Waiting] = []
        self._most, self._note = most_rows, note
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def submit(self, call: Call, arrays: Arrays) -> Arrays:
        """The outputs of some rows; Overloaded, or what the call raises."""
        request = _Waiting(call, arrays)
        waiting = sum(one.rows for one in self._waiting)
        if waiting and waiting + request.rows > self._most:
            raise Overloaded(f"{waiting:,} rows wait already; try again later")
        self._waiting.append(request)
        self._arrived.set()
        return await request.answer

    async def run(self) -> None:
        """Answer until cancelled."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while batch := self._next():
                    await self._answer(batch)
        finally:
            for one in self._waiting:
                one.answer.cancel()
            self._thread.shutdown(wait=False)

    def _next(self) -> list[_Waiting]:
        """The first that waits, and those of its kind that fit into a call with it."""
        self._waiting = [one for one in self._waiting if not one.answer.done()]
        taken: list[_Waiting] = []
        rows = 0
        for one in self._waiting:
            if not taken or (one.kind == taken[0].kind and rows + one.rows <= LARGEST):
                taken.append(one)
                rows += one.rows
        self._waiting = [one for one in self._waiting if one not in taken]
        return taken

    async def _answer(self, batch: list[_Waiting]) -> None:
        arrays = {name: np.concatenate([one.arrays[name] for one in batch]) for name in batch[0].arrays}
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._thread, self._in_blocks, batch[0].call, arrays)
        except Exception as error:  # whatever a model raises is its request's answer
            if len(batch) > 1:
                # One of them may be at fault.
                for one in batch:
                    await self._answer([one])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        start = 0
        for one in batch:
            if not one.answer.done():
                one.answer.set_result({name: output[start : start + one.rows] for name, output in outputs.items()})
            start += one.rows

    def _in_blocks(self, call: Call, arrays: Mapping[str, np.ndarray]) -> Arrays:
        total = len(next(iter(arrays.values())))
        parts = []
        for start in range(0, total, LARGEST):
            self._note(min(LARGEST, total - start))
            parts.append(call({name: array[start : start + LARGEST] for name, array in arrays.items()}))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
