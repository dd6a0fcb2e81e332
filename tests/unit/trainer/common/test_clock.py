"""The machine's clock, and the fake one that tests let pass."""

import os
import resource
import signal
import socket
import threading

import pytest

from trainer.common.clock import CLOCK


def test_only_what_can_be_read_is_selected():
    (ours, theirs), (quiet, other) = socket.socketpair(), socket.socketpair()
    with ours, theirs, quiet, other:
        assert CLOCK.select([ours, quiet], 0.0) == []
        theirs.sendall(b"x")
        assert CLOCK.select([ours, quiet], None) == [ours]
        other.close()
        assert CLOCK.select([ours, quiet], 1.0) == [ours, quiet], "an end can be read, too"


def test_more_descriptors_than_select_takes_can_be_awaited():
    """A supervisor leads hundreds of others; select() ends at descriptor 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine allows no so many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    ours, theirs = socket.socketpair()
    high = os.fdopen(os.dup2(ours.fileno(), 1500), "rb", buffering=0)
    with ours, theirs, high:
        theirs.sendall(b"x")
        assert CLOCK.select([high], None) == [high]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_blocked_signal_comes_or_does_not():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        assert CLOCK.signal({signal.SIGUSR1}, 0.0) is None
        signal.raise_signal(signal.SIGUSR1)
        assert CLOCK.signal({signal.SIGUSR1}, 60.0) == signal.SIGUSR1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_fake_time_passes_only_while_all_wait(clock):
    """A thread that works holds it."""
    began, order, worked = clock.monotonic(), [], threading.Event()

    def rest(seconds):
        clock.sleep(seconds)
        order.append((clock.monotonic() - began, worked.is_set()))

    def work():
        assert not worked.wait(0.02), "real seconds"
        worked.set()

    clock.together(lambda: rest(3600.0), lambda: rest(60.0), work)
    assert order == [(60.0, True), (3600.0, True)]


def test_what_never_comes_fails_the_test(clock):
    with pytest.raises(AssertionError, match="not within 60 s: rain"):
        clock.until(lambda: False, "rain", 60.0)
    with pytest.raises(AssertionError, match="time stands still: all wait for ever"):
        clock.join(threading.current_thread())
