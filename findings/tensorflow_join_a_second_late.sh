#!/usr/bin/env bash
# TensorFlow 2.21.0: a worker that joins a moment before the first one listens waits another second.
#
# The workers of MultiWorkerMirroredStrategy connect to the first one. Where that does not listen yet, the connection is refused, and gRPC
# tries again only after a second (its default `initial_reconnect_backoff_ms`), though the first worker may listen a few milliseconds
# later. Workers that are started together join in an instant or after a second, by chance.
#
# Here: two processes that have imported TensorFlow make the strategy, one 0.1 s before the other; the time from the later start until
# both have it. Three times each.
#
# Expected: the same time, whichever of them starts first.
# Seen: over half a second longer, each time, where the second worker starts first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6

cat > worker.py <<'PROGRAM'
import sys

import tensorflow as tf

print("ready", flush=True)
sys.stdin.readline()
tf.distribute.MultiWorkerMirroredStrategy()
print("joined", flush=True)
sys.stdin.readline()
PROGRAM
cat > join.py <<'PROGRAM'
import json
import os
import socket
import statistics
import subprocess
import sys
import time


def ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def joining(order):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports(2)]}
    workers = []
    for rank in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        workers.append(subprocess.Popen([sys.executable, "worker.py"], env={**os.environ, "TF_CONFIG": config}, **pipes))
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for number, rank in enumerate(order):
        if number:
            time.sleep(0.1)
        begun = time.monotonic()
        workers[rank].stdin.write("go\n")
        workers[rank].stdin.flush()
    for worker in workers:
        assert worker.stdout.readline() == "joined\n"
    took = time.monotonic() - begun
    for worker in workers:
        worker.stdin.close()
    for worker in workers:
        worker.wait()
    return took


first, second = ([joining(order) for _ in range(3)] for order in ((0, 1), (1, 0)))
print("the first worker starts first: ", *(f"{one:.2f}" for one in first), "s", file=sys.stderr)
print("the second worker starts first:", *(f"{one:.2f}" for one in second), "s", file=sys.stderr)
print("longer:", min(second) - statistics.median(first) > 0.5)
PROGRAM
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
venv/bin/python join.py > out
if [ "$(cat out)" = "longer: True" ]; then
  echo "TensorFlow 2.21.0: as seen before: a worker that joins a moment too early waits another second"
else
  echo "TensorFlow 2.21.0: changed: $(cat out)" >&2
  exit 1
fi
