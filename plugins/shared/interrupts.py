"""Effects of Ctrl-C on Ansible's own processes."""

import functools
import signal
from collections.abc import Callable
from typing import Any

from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_queue_manager import FinalQueue


def finish_messages_before_dying() -> None:
    """Let a task's process that is told to end finish its current message to the command.

    Ansible's `WorkerProcess` kills itself in the signal's handler. If it is killed while it holds the lock of the result queue, the
    lock stays taken and the command hangs in its own clean-up. During a message, the handler only records its work; the last sender
    does it.
    """
    send, die = FinalQueue.put, WorkerProcess._term
    sending: list[None] = []
    deaths: list[Callable[[], None]] = []

    @functools.wraps(send)
    def put(queue: FinalQueue, message: Any) -> None:
        sending.append(None)
        try:
            send(queue, message)
        finally:
            sending.pop()
            if deaths and not sending:
                deaths[0]()

    @functools.wraps(die)
    def term(process: WorkerProcess, number: int, frame: Any) -> None:
        if sending:
            deaths.append(lambda: die(process, number, frame))
        else:
            die(process, number, frame)

    FinalQueue.put, WorkerProcess._term = put, term


def wait_for_forks() -> None:
    """Let Ctrl-C wait until a task's process exists and can pass it on.

    Python drops what a signal's handler raises in the middle of a fork, and the new process would die of the signal before it knows its
    task: Ansible would then say "A worker was found in a dead state".
    """
    start, run = WorkerProcess.start, WorkerProcess._run

    @functools.wraps(start)
    def started(process: WorkerProcess) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @functools.wraps(run)
    def ran(process: WorkerProcess) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        run(process)

    WorkerProcess.start, WorkerProcess._run = started, ran
