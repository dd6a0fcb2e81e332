"""Python programs that need TensorFlow fresh."""

import subprocess
from typing import Any

from tests import preloaded
from tests.project import ROOT

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python ARGV`, `-c PROGRAM ...` or `-m MODULE ...`, in the project's folder, with `text` as its standard input."""
    return preloaded.run(argv, ROOT, ENVIRONMENT, text)


def answer(program: str, *arguments: str) -> Any:
    """What a program prints in its last line, JSON."""
    return preloaded.answer(("-c", program, *arguments), ROOT, ENVIRONMENT)
