"""Effects of Ctrl-C on Ansible's own processes."""

import functools
from collections.abc import Callable
from typing import Any

from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_queue_manager import FinalQueue

Handler = Callable[[int, Any], None]


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


def after_forks(handle: Handler) -> Handler:
    """A handler that lets the start of a task's process come to its end first.

    Python drops what a handler raises in the middle of a fork: Ansible, which has just ended its other processes, would go on, and say "A
    worker was found in a dead state". The new process gets the signal from the command once it knows its task.
    """
    start = WorkerProcess.start
    forking: list[None] = []
    waiting: list[tuple[int, Any]] = []

    @functools.wraps(start)
    def started(process: WorkerProcess) -> None:
        forking.append(None)
        try:
            start(process)
        finally:
            forking.clear()
            if waiting:
                handle(*waiting.pop())

    def handler(number: int, frame: Any) -> None:
        if forking:
            waiting[:] = [(number, frame)]
        else:
            handle(number, frame)

    WorkerProcess.start = started
    return handler
