"""Random programs tried in processes that are forked from this one, which has imported TensorFlow and used nothing of it."""

import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.oracle.comparing import attempt, kind_of, shrunk
from tests.oracle.programs import Program, made

BLOCK = 10
"""Programs of a process: TensorFlow keeps what it has traced, and looking through that for garbage would soon take longest."""
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Found:
    """What came out of a program."""

    seed: int
    kind: str
    """As of `comparing.kind_of`."""
    text: str
    program: dict[str, Any]
    """What the program, shrunk if it differs, has that the smallest has not."""
    seconds: float = 0.0
    """Of the processor."""


def tried(seeds: Sequence[int], lanes: int, shrinks: bool) -> Iterator[Found]:
    """Try programs, `lanes` at a time, and yield what is found as it is."""
    size = max(1, min(BLOCK, len(seeds) // lanes))
    waiting, running = [seeds[first : first + size] for first in range(0, len(seeds), size)][::-1], dict[Any, tuple[Any, list[int]]]()
    while waiting or running:
        while waiting and len(running) < lanes:
            block = waiting.pop()
            process, there = _begun(block, shrinks)
            running[there] = process, list(block)
        for ready in wait(list(running)):
            process, left = running[ready]
            try:
                found = ready.recv()
            except EOFError:
                del running[ready]
                process.join()
                if left:
                    yield Found(left[0], "differs", f"its process has ended with {process.exitcode}", shown(made(left[0])))
                if left[1:]:
                    waiting.append(left[1:])
                continue
            left.remove(found.seed)
            yield found


def _begun(seeds: Sequence[int], shrinks: bool) -> tuple[Any, Connection]:
    """Fork a process that tries programs one after the other, and sends what it finds."""
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_work, args=(seeds, shrinks, there), daemon=True)
    process.start()
    there.close()
    return process, here


def _work(seeds: Sequence[int], shrinks: bool, there: Connection) -> None:
    # Garbage is collected between programs.
    gc.freeze()
    gc.disable()
    for seed in seeds:
        there.send(found_of(made(seed), shrinks))


def found_of(program: Program, shrinks: bool) -> Found:
    """Try a program."""
    begun = time.process_time()
    text = attempt(program)
    kind = kind_of(text)
    if kind == "differs" and shrinks:
        program = shrunk(program)
        text = attempt(program) or text
    return Found(program.seed, kind, text, shown(program), round(time.process_time() - begun, 1))


def shown(program: Program) -> dict[str, Any]:
    """What a program has that the smallest has not."""
    every = asdict(Program())
    return {name: value for name, value in asdict(program).items() if value != every[name]}
