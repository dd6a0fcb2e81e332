"""Effects of Ctrl-C on Ansible's own processes."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_queue_manager import FinalQueue

Handler = Callable[[int, Any], None]


def finish_messages_before_dying() -> None:
    """Let a task's process finish its current message to the command before SIGTERM ends it, whichever of its threads sends it.

    Ansible's `WorkerProcess` kills itself in the signal's handler. If it is killed while it holds the lock of the result queue, the
    lock stays taken and the command hangs in its own clean-up. During a message, the handler only records the signal; the sender sends
    the signal again when the message is complete.
    """
    send, die = FinalQueue.put, WorkerProcess._term
    sending = threading.Lock()
    due: list[int] = []

    @functools.wraps(send)
    def put(queue: FinalQueue, message: Any) -> None:
        try:
            with sending:
                send(queue, message)
        finally:
            if due:
                # Only the main thread handles signals.
                os.kill(os.getpid(), due[0])

    @functools.wraps(die)
    def term(process: WorkerProcess, number: int, frame: Any) -> None:
        # In this order: who holds the lock sees the signal once the lock is free.
        due.append(number)
        if sending.acquire(blocking=False):
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
