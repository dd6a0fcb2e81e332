"""The processes that only answer the chief: a worker, which computes what it is handed, and a parameter server, which keeps weights."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trainer.common.errors import ClusterError
from trainer.parameter_server.roles import SERVER, Task, tf_config


def serve(task: Task, threads: int, ready: Callable[[], None] = lambda: None) -> NoReturn:
    """Answer the chief, `ready` from the call of that function on, until this process is ended from outside.

    Raises:
        ClusterError: its port is taken.
    """
    import tensorflow as tf

    from trainer.network.cluster import set_threads

    set_threads(threads)
    try:
        server = tf.distribute.Server(task.training, job_name=task.role, task_index=task.index, protocol="grpc")
    except tf.errors.OpError as error:
        raise ClusterError(f"{task.role} {task.index} can't listen on {task.address}: {error.message}") from None
    print(f"{task.role} {task.index} of {len(task.cluster[task.role])} listens on {server.target}", flush=True)
    ready()
    while True:
        threading.Event().wait()


def start_server(task: Task, index: int, threads: int, log: Path) -> None:
    """Start the parameter server of this host, which does not outlive this process."""
    argv = [sys.executable, "-m", "trainer", "ps", "--threads", str(threads), "--parent", str(os.getpid())]
    environment = {**os.environ, "TF_CONFIG": json.dumps(tf_config(task.cluster, SERVER, index))}
    with log.open("ab") as stream:
        subprocess.Popen(argv, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
