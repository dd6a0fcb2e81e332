"""The engine's process as the server sees it: started, asked, ended when it does not answer in time, and started again."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from control.serving import frames
from control.serving.refusals import Overloaded

GRACE_S = 5.0
"""Time that a computation which nobody waits for any more has to end, before its process is ended."""
AGAIN_S, LONGEST_AGAIN_S = 0.5, 30.0
"""Before the engine is started again: at first, and after several starts that failed."""
LAST_NUMBER = 2**32 - 1
log = logging.getLogger("uvicorn.error")


class EngineProcess:
    """Asks the engine, which runs in another process: whatever a request does there, the server goes on."""

    def __init__(self, command: Callable[[int], Sequence[str]], seconds: float, note: Callable[[Mapping[str, Any]], None] = lambda _: None):
        """Nothing is started yet.

        Args:
            command: argv of the engine for the file descriptor of its channel.
            seconds: in which a request must be answered.
            note: called with the engine's news.
        """
        self._command, self._seconds, self._note = command, seconds, note
        self.served = 0
        """The version that is served; 0: none, or the engine does not run."""
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._abandoned: dict[int, asyncio.TimerHandle] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ended_for = ""

    async def run(self) -> None:
        """Keep the engine running until cancelled."""
        wait = AGAIN_S
        while True:
            had_served = await self._run_once()
            wait = AGAIN_S if had_served else min(2 * wait, LONGEST_AGAIN_S)
            await asyncio.sleep(wait)

    async def _run_once(self) -> bool:
        """One process from its start to its end; whether it came to serve."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(*self._command(theirs.fileno()), pass_fds=[theirs.fileno()])
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=2**20)
        had_served = False
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    number, status, data = await frames.read_answer(reader)
                    if number == frames.NEWS:
                        self._hear(json.loads(data))
                        had_served = had_served or self.served > 0
                    else:
                        self._answered(number, status, data)
            log.warning("the process that computes %s; it is started again", self._why(await self._process.wait()))
        finally:
            self._end()
            await self._process.wait()
        return had_served

    def _hear(self, news: Mapping[str, Any]) -> None:
        self.served = news.get("served", self.served)
        if "log" in news:
            log.info("%s", news["log"])
        self._note(news)

    def _answered(self, number: int, status: int, data: bytes) -> None:
        if timer := self._abandoned.pop(number, None):
            timer.cancel()
        future = self._asked.pop(number, None)
        if future is not None and not future.done():
            future.set_result((status, data))

    def _why(self, code: int) -> str:
        if self._ended_for:
            return self._ended_for
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _end(self) -> None:
        """Free everything of the process that has ended, or is ended now."""
        assert self._writer is not None
        assert self._process is not None
        self._writer.transport.abort()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for timer in self._abandoned.values():
            timer.cancel()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Overloaded("the process that computes ended on this request or on another; try again later"))
        self._asked, self._abandoned, self._writer, self.served, self._ended_for = {}, {}, None, 0, ""

    async def ask(self, method: str, version: int, body: bytes | bytearray = b"") -> tuple[int, bytes]:
        """Status and JSON for a request; Overloaded if there is no answer in time, or no engine."""
        if self._writer is None:
            raise Overloaded("the process that computes is being started again; try again later")
        number = next(self._numbers) % LAST_NUMBER + 1
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(frames.request(number, method, version, body))
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            raise Overloaded(f"no answer within {self._seconds:g} s; send fewer rows per request, or try again later") from None
        finally:
            if self._asked.pop(number, None) is not None and self._writer is not None:
                self._abandon(number)

    def _abandon(self, number: int) -> None:
        """Have a request dropped; the engine is ended if it can't do that."""
        assert self._writer is not None
        self._writer.write(frames.request(number, "cancel", 0, b""))
        self._abandoned[number] = asyncio.get_running_loop().call_later(GRACE_S, self._kill, number)

    def _kill(self, number: int) -> None:
        self._abandoned.pop(number, None)
        if self._process is not None:
            self._ended_for = f"was ended, since a request kept it busy for more than {self._seconds + GRACE_S:g} s"
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
