"""Try programs, and shrink each that differs.

python -m tests.oracle [N] [--seed S] [--lanes L]    N random programs (300), the first from seed S (0), L at a time (1)
python -m tests.oracle --program JSON                this one
python -m tests.oracle --cases                       each case of cases.yml, which differed once; prints one JSON object

The exit code is 1 if any of the random ones differs, or if too many can't be compared.

All is computed in float64, so that rounding, which some optimizers magnify, stays far below a difference that means something.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "8"}
"""Environment variables: each worker is a thread, and waits for the others in an operation."""
CASES = Path(__file__).with_name("cases.yml")
NOT_COMPARED = 0.1
"""The largest share of programs that may be refused, fail in `fit`, too, or magnify rounding."""


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 1 if a program differs."""
    options = arguments(given)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import keras
    import tensorflow as tf

    from tests.oracle.comparing import attempt
    from tests.oracle.programs import of

    keras.config.set_floatx("float64")
    tf.get_logger().setLevel("ERROR")
    if options.program:
        try:
            one = of(options.program)
        except ValueError as error:
            print(f"python -m tests.oracle: --program: {error}", file=sys.stderr)
            return 2
        print(attempt(one) or "the same")
        return 0
    if options.cases:
        cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
        print(json.dumps({case["name"]: attempt(of(case["program"])) for case in cases}))
        return 0
    return search(range(options.seed, options.seed + options.count), options.lanes, shrinks=not options.whole)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line; one that means nothing ends the process with a line that says why."""
    line = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    line.add_argument("count", nargs="?", type=positive, default=300)
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--program", type=program)
    line.add_argument("--cases", action="store_true")
    line.add_argument("--whole", action="store_true", help="do not shrink")
    line.add_argument("--lanes", type=positive, default=1)
    return line.parse_args(given)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least 1")
    return int(text)


def program(text: str) -> Any:
    """The JSON of a program, whose fields are those of `programs.Program`."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise argparse.ArgumentTypeError("expected an object, such as '{\"rows\": 8}'")
    return values


def search(seeds: Sequence[int], lanes: int, shrinks: bool) -> int:
    """Try random programs, in `lanes` processes at a time, and print what is found; exit code."""
    from tests.oracle.lanes import tried

    kinds, begun, every = Counter[str](), time.monotonic(), []
    for number, found in enumerate(tried(seeds, lanes, shrinks), 1):
        kinds[found.kind] += 1
        every.append((found.seconds, found.seed))
        if found.kind in ("differs", "refused", "failing"):
            where = sys.stderr if found.kind == "failing" else sys.stdout
            print(f"{found.seed}: {found.text}\n    {json.dumps(found.program)}", file=where, flush=True)
        if not number % 10:
            print(f"{number} of {len(seeds)} programs, {kinds['differs']} differ", file=sys.stderr, flush=True)
    share = 1 - (kinds["same"] + kinds["differs"]) / len(seeds)
    why = f"{kinds['refused']} refused, {kinds['failing']} fail in fit, too, {kinds['rounding']} magnify rounding"
    seconds = time.monotonic() - begun
    print(f"{len(seeds)} programs: {kinds['differs']} differ; {share:.1%} not compared ({why}); {seconds / len(seeds):.2f} s each")
    print("longest:", ", ".join(f"{seed} ({used:.0f} s)" for used, seed in sorted(every, reverse=True)[:5]))
    if share > NOT_COMPARED:
        print(f"too many were not compared: at most {NOT_COMPARED:.0%} may")
    return int(kinds["differs"] > 0 or share > NOT_COMPARED)


if __name__ == "__main__":
    sys.exit(main())
