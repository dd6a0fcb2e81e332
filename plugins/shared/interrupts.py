"""Effects of Ctrl-C on Ansible's own processes."""

import functools
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
