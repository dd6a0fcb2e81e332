"""Python programs that need TensorFlow fresh."""

import json
import subprocess
import tempfile
from pathlib import Path

from tests import preloaded
from tests.project import ROOT

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python ARGV`, `-c PROGRAM ...` or `-m MODULE ...`, in the project's folder, with `text` as its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("in", "out", "err")]
        streams[0].write_text(text)
        code = preloaded.Process(preloaded.python, argv, ROOT, streams, ENVIRONMENT).wait()
        return subprocess.CompletedProcess(argv, code, *(path.read_text() for path in streams[1:]))


def answer(program: str, *arguments: str):
    """What a program prints in its last line, JSON."""
    done = run("-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
