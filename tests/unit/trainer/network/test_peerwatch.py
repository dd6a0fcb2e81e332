"""The watch over the other workers: who is silent, or gone without anybody noticing, ends this worker; nobody else does."""

import itertools
import threading

import pytest

from trainer.network.peer_watch import Answer, PeerWatch

ALIVE, SILENT, GONE = Answer.ALIVE, Answer.SILENT, Answer.GONE


def watch(answers, clock):
    """Ranks that were lost when each peer had given all its answers; after them it is alive."""
    lost, given = [], {rank: itertools.chain(listed, itertools.repeat(ALIVE)) for rank, listed in answers.items()}
    left, heard = {rank: len(listed) for rank, listed in answers.items()}, threading.Event()

    def ask(rank):
        left[rank] -= 1
        if max(left.values()) < 0:
            heard.set()
        return next(given[rank])

    def lose(rank):
        lost.append(rank)
        heard.set()

    thread = PeerWatch(list(answers), ask, lose, clock)
    thread.start()
    clock.until(heard.is_set, "all answers")
    thread.stop()
    assert not thread.is_alive()
    return lost


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ({0: [], 2: []}, []),
        ({0: [ALIVE] * 5, 2: [ALIVE, SILENT]}, [2]),
        ({0: [SILENT], 2: [SILENT]}, [0]),
        ({0: [GONE, GONE, ALIVE, GONE, GONE], 2: []}, []),
        ({0: [], 2: [GONE] * 3}, [2]),
    ],
)
def test_who_is_lost(answers, lost, clock):
    assert watch(answers, clock) == lost


def test_a_watch_that_was_stopped_loses_nobody(clock):
    """A worker that is done: its peers end, too, and nobody is to blame."""
    lost, asked, stopping = [], threading.Event(), threading.Event()

    def ask(rank):
        asked.set()
        clock.wait(stopping, 60.0)
        return SILENT

    thread = PeerWatch([1], ask, lost.append, clock)
    thread.start()
    clock.until(asked.is_set, "the question")
    threading.Thread(target=lambda: [clock.sleep(10.0), stopping.set()], daemon=True).start()
    thread.stop()
    assert (lost, thread.is_alive()) == ([], False)


def test_a_worker_alone_watches_nobody():
    thread = PeerWatch([], None, None)
    thread.start()
    thread.stop()
