"""An engine that hangs, dies or does not start, and what those who asked it get."""

import asyncio
import sys
import textwrap

import pytest

from control.common import project
from control.serving import engine_process
from control.serving.engine_process import EngineProcess
from control.serving.refusals import Overloaded

ENGINE = """
    import json, os, signal, socket, sys
    from control.serving import frames

    channel = socket.socket(fileno=int(sys.argv[1]))
    file = channel.makefile("rb")
    channel.sendall(frames.answer(frames.NEWS, 200, b'{"served": 1, "pid": %d}' % os.getpid()))
    held = []
    while head := file.read(frames._REQUEST.size):
        number, method, version, length = frames._REQUEST.unpack(head)
        body = file.read(length)
        if frames.METHODS[method] == "cancel" and held:
            channel.sendall(frames.answer(held.pop(), 503, b""))
        elif body == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif body == b"hang":
            signal.pause()
        elif body == b"wait":
            held.append(number)
        elif frames.METHODS[method] == "predict":
            channel.sendall(frames.answer(number, 200, body[::-1]))
"""


def asked(work, seconds=20.0):
    """What `work(process, started)` gives while the engine is kept running; `started` has the number of each process of it."""

    async def main():
        started = asyncio.Queue()
        argv = [sys.executable, "-c", textwrap.dedent(ENGINE)]
        process = EngineProcess(lambda channel: [*argv, str(channel)], seconds, lambda news: started.put_nowait(news["pid"]))
        runner = asyncio.create_task(process.run())
        try:
            async with asyncio.timeout(100):
                await started.get()
                return await work(process, started)
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(project.ROOT))
    monkeypatch.setattr(engine_process, "AGAIN_S", 0.01)


def test_answers_belong_to_their_requests():
    async def work(process, _):
        return await asyncio.gather(*(process.ask("predict", 0, b"%d." % number) for number in range(10)))

    assert asked(work) == [(200, b".%d" % number) for number in range(10)]


def test_death_fails_requests_and_starts_engine_again():
    async def work(process, started):
        waiting = asyncio.create_task(process.ask("predict", 0, b"wait"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="ended on this request or on another; try again later"):
            await process.ask("predict", 0, b"die")
        with pytest.raises(Overloaded):
            await waiting
        with pytest.raises(Overloaded, match="is being started again; try again later"):
            await process.ask("predict", 0, b"x")
        assert not process.served
        await started.get()
        return await process.ask("predict", 0, b"ab")

    assert asked(work) == (200, b"ba")


def test_request_dropped_in_time_ends_nothing():
    async def work(process, _):
        with pytest.raises(Overloaded, match=r"no answer within 0\.2 s; send fewer rows per request, or try again later"):
            await process.ask("predict", 0, b"wait")
        process._seconds = 60
        # This answer comes after that to the cancelled request.
        assert await process.ask("predict", 0, b"ab") == (200, b"ba")
        return process._abandoned

    assert asked(work, 0.2) == {}


def test_engine_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(engine_process, "GRACE_S", 0.1)

    async def work(process, started):
        with pytest.raises(Overloaded, match=r"no answer within 0\.2 s"):
            await process.ask("predict", 0, b"hang")
        await started.get()
        process._seconds = 60
        return await process.ask("predict", 0, b"ab")

    assert asked(work, 0.2) == (200, b"ba")
