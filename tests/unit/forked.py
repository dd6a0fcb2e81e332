"""Python programs that need TensorFlow fresh: each is forked from one process that has imported it, which takes 4 s a time."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests.unit.samples import ROOT

ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class Forks:
    """The process that has imported TensorFlow, started at the first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run `python ARGV`, `-c PROGRAM ...` or `-m MODULE ...`, in the project's folder, with `text` as its standard input."""
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("in", "out", "err")]
            streams[0].write_text(text)
            code = int(self._ask({"argv": argv, "streams": [str(path) for path in streams]}))
            return subprocess.CompletedProcess(argv, code, *(path.read_text() for path in streams[1:]))

    def answer(self, program: str, *arguments: str):
        """What a program prints in its last line, JSON."""
        done = self.run("-c", program, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.communicate()

    def _ask(self, request: dict) -> str:
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            argv = [sys.executable, "-m", "tests.unit.forked"]
            self._process = subprocess.Popen(argv, cwd=ROOT, env=os.environ | ENVIRONMENT, **pipes)
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def serve() -> None:
    """Fork a process for each request on standard input and answer with its exit code."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            os._exit(become(**json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def become(argv: list[str], streams: list[str]) -> int:
    """Run one program in this process; its exit code."""
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    kind, program, *arguments = argv
    sys.argv, code = [kind, *arguments], 0
    try:
        if kind == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve()
