"""Python programs that need TensorFlow fresh."""

import json
import os
import subprocess
import sys

from tests import preloaded
from tests.project import ROOT

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
_SERVER = preloaded.with_tensorflow(ROOT)


def run(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python ARGV`, `-c PROGRAM ...` or `-m MODULE ...`, in the project's folder, with `text` as its standard input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    settings = {"cwd": ROOT, "env": {**os.environ, **preloaded.ENVIRONMENT, **ENVIRONMENT}, "start_new_session": True}
    with _SERVER.popen([sys.executable, *argv], **settings, **pipes) as process:
        printed = process.communicate(text)
    return subprocess.CompletedProcess(argv, process.returncode, *printed)


def answer(program: str, *arguments: str):
    """What a program prints in its last line, JSON."""
    done = run("-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
