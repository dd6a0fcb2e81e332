"""Requests that arrive while a model computes are computed together next: no request waits for others to come."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from control.serving.protocol import MOST_ARRAY_BYTES, Arrays, Call, check_answer
from control.serving.refusals import Overloaded
from trainer.evaluation.predict import BLOCK

MOST_BYTES_WAITING = 2 * MOST_ARRAY_BYTES


@dataclass(eq=False)
class _Waiting:
    call: Call
    arrays: Arrays
    block: int
    answer: "asyncio.Future[Arrays]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no thread computes it any more."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests of one kind fit into one call."""
        return (self.call, self.block, *((name, array.dtype.str, array.shape[1:]) for name, array in self.arrays.items()))


class Batcher:
    """Calls models in one thread; TensorFlow itself uses all cores."""

    def __init__(self, most_rows: int = 4096, note: Callable[[int], None] = lambda _: None):
        """At most `most_rows` wait; `note` is called with the rows of each call."""
        self._waiting: list[_Waiting] = []
        self._most, self._note = most_rows, note
        self._arrived = asyncio.Event()
        self._computed: list[_Waiting] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def submit(self, call: Call, arrays: Arrays, block: int = BLOCK) -> Arrays:
        """The outputs of some rows, of which at most `block` are in a call; Overloaded, or what the call raises.

        Cancelled while it is computed, this ends when the computation does, at the latest after the call under way.
        """
        request = _Waiting(call, arrays, block)
        waiting, held = (sum(getattr(one, what) for one in self._waiting) for what in ("rows", "bytes"))
        if waiting and waiting + request.rows > self._most:
            raise Overloaded(f"{waiting:,} rows wait already, and at most {self._most:,} may; try again later")
        if waiting and held + request.bytes > MOST_BYTES_WAITING:
            raise Overloaded(f"{held / 2**20:,.0f} MiB wait already, and at most {MOST_BYTES_WAITING // 2**20} may; try again later")
        self._waiting.append(request)
        self._arrived.set()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request in self._computed:
                await request.ended.wait()
            raise

    async def run(self) -> None:
        """Answer until cancelled."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while batch := self._next():
                    self._computed = batch
                    await self._answer(batch)
                    self._computed = []
                    for one in batch:
                        one.ended.set()
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
            if not taken or (one.kind == taken[0].kind and rows + one.rows <= one.block):
                taken.append(one)
                rows += one.rows
        self._waiting = [one for one in self._waiting if one not in taken]
        return taken

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, batch)
        except Exception as error:  # whatever a model raises is its request's answer
            if len(batch) > 1:
                # One of them may be at fault.
                for one in batch:
                    await self._answer([one])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for one, output in zip(batch, outputs, strict=True):
            if not one.answer.done():
                one.answer.set_result(output)

    def _compute(self, batch: list[_Waiting]) -> list[Arrays]:
        """The outputs of each request."""
        arrays = {name: np.concatenate([one.arrays[name] for one in batch]) for name in batch[0].arrays}
        total, step = sum(one.rows for one in batch), batch[0].block
        parts: list[Arrays] = []
        for start in range(0, total, step):
            if all(one.answer.cancelled() for one in batch):
                raise ValueError("nobody waits for these rows any more")
            rows = min(step, total - start)
            part = batch[0].call({name: array[start : start + rows] for name, array in arrays.items()})
            if wrong := [name for name, output in part.items() if output.shape[:1] != (rows,)]:
                raise ValueError(f"{rows} rows gave the output {wrong[0]} of shape {part[wrong[0]].shape}")
            if len(batch) == 1:
                check_answer({name: (total, *output.shape[1:]) for name, output in part.items()})
            self._note(rows)
            parts.append(part)
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ends = np.cumsum([one.rows for one in batch])
        return [{name: output[end - one.rows : end] for name, output in whole.items()} for one, end in zip(batch, ends, strict=True)]
