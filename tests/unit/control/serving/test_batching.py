"""Which requests are computed together, and what becomes of each."""

import asyncio
import threading

import numpy as np
import pytest

from control.serving import batching, protocol
from control.serving.batching import BLOCK, Batcher
from control.serving.refusals import BadRequest, Overloaded


class Model:
    """Doubles its input, once it may; notes the rows of each call."""

    def __init__(self, free=True):
        self.may, self.calls = threading.Event(), []
        if free:
            self.may.set()

    def __call__(self, arrays):
        assert self.may.wait(20)
        self.calls.append(len(arrays["x"]))
        if (arrays["x"] < 0).any():
            raise ValueError("negative")
        return {"y": 2 * arrays["x"]}


def rows(*values, width=1):
    return {"x": np.array(values, np.float32).reshape(-1, 1).repeat(width, axis=1)}


def batched(work, most_rows=4096):
    """What `work(batcher)` gives while the batcher runs."""

    async def main():
        batcher = Batcher(most_rows)
        runner = asyncio.create_task(batcher.run())
        try:
            return await work(batcher)
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)

    return asyncio.run(main())


async def while_busy(batcher, model, requests):
    """The answers to requests that arrive while the model computes another."""
    first = asyncio.create_task(batcher.submit(model, rows(0)))
    await asyncio.sleep(0)
    others = [asyncio.create_task(batcher.submit(model, one)) for one in requests]
    await asyncio.sleep(0)
    model.may.set()
    return (await asyncio.gather(first, *others, return_exceptions=True))[1:]


def test_simultaneous_requests_are_one_call_with_own_rows():
    """Requests that arrive meanwhile are one call and each gets its own rows."""
    model = Model(free=False)
    answers = batched(lambda batcher: while_busy(batcher, model, [rows(1), rows(2, 3), rows(4)]))
    assert [answer["y"].ravel().tolist() for answer in answers] == [[2], [4, 6], [8]]
    assert model.calls == [1, 4]


def test_requests_of_other_shapes_are_separate_calls():
    model = Model(free=False)
    answers = batched(lambda batcher: while_busy(batcher, model, [rows(1), rows(2, width=2), rows(3)]))
    assert [answer["y"].tolist() for answer in answers] == [[[2]], [[4, 4]], [[6]]]
    assert model.calls == [1, 2, 1]


def test_one_at_fault_is_alone_with_it():
    model = Model(free=False)
    good, bad, other = batched(lambda batcher: while_busy(batcher, model, [rows(1), rows(-1), rows(3)]))
    assert (good["y"].item(), other["y"].item()) == (2, 6)
    assert isinstance(bad, ValueError)


@pytest.mark.parametrize(("count", "block", "calls"), [(5, 2, [2, 2, 1]), (2 * BLOCK + 5, BLOCK, [BLOCK, BLOCK, 5])])
def test_call_has_at_most_its_block_of_rows(count, block, calls):
    model = Model()
    answer = batched(lambda batcher: batcher.submit(model, rows(*range(count)), block))
    assert answer["y"].ravel().tolist() == [2 * number for number in range(count)]
    assert model.calls == calls


def test_cancelled_request_ends_after_call_under_way():
    model = Model(free=False)

    async def work(batcher):
        asked = asyncio.create_task(batcher.submit(model, rows(1, 2, 3), 1))
        while not batcher._computed:
            await asyncio.sleep(0)
        asked.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asked.done(), "a call is under way"
        model.may.set()
        with pytest.raises(asyncio.CancelledError):
            await asked

    batched(work)
    assert len(model.calls) < 3


def test_answer_that_becomes_too_large_is_not_computed(monkeypatch):
    monkeypatch.setattr(protocol, "MOST_ANSWER_VALUES", 4)
    model = Model()
    with pytest.raises(BadRequest, match="5 rows give 5 values"):
        batched(lambda batcher: batcher.submit(model, rows(1, 2, 3, 4, 5), 1))
    assert model.calls == [1]


def test_output_of_other_rows_fails_its_request_alone():
    """An output of other rows is an error and the next request is answered."""

    async def work(batcher):
        with pytest.raises(ValueError, match=r"2 rows gave the output y of shape \(1, 1\)"):
            await batcher.submit(lambda arrays: {"y": arrays["x"][:1]}, rows(1, 2))
        return await batcher.submit(Model(), rows(1))

    assert batched(work)["y"].item() == 2


@pytest.mark.parametrize(("most_rows", "most_bytes", "message"), [(3, 2**20, "rows wait already"), (4096, 12, "MiB wait already")])
def test_too_many_rows_or_bytes_do_not_wait(most_rows, most_bytes, message, monkeypatch):
    """A row of inputs whose length varies may be large. Both requests that waited before are answered."""
    monkeypatch.setattr(batching, "MOST_BYTES_WAITING", most_bytes)
    model = Model(free=False)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit(model, rows(0)))
        await asyncio.sleep(0)
        second = asyncio.create_task(batcher.submit(model, rows(1, 2)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=message):
            await batcher.submit(model, rows(1, 2))
        model.may.set()
        return await asyncio.gather(first, second)

    assert len(batched(work, most_rows)) == 2


def test_one_that_went_away_is_not_computed():
    model = Model(free=False)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit(model, rows(0)))
        await asyncio.sleep(0)
        gone = asyncio.create_task(batcher.submit(model, rows(1)))
        await asyncio.sleep(0)
        gone.cancel()
        model.may.set()
        await first
        return await batcher.submit(model, rows(2))

    assert batched(work)["y"].item() == 4
    assert sum(model.calls) == 2
