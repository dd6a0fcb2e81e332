"""Try programs, and shrink each that differs.

python -m tests.oracle [N] [--seed S] [--lanes L]    N random programs (300), the first from seed S (0), by L processes (1)
python -m tests.oracle --program JSON                this one
python -m tests.oracle --cases                       each case of cases.yml, which differed once; prints one JSON object

The exit code is 1 if any of the random ones differs.

All is computed in float64, so that rounding, which some optimizers magnify, stays far below a difference that means something.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "8"}
"""Environment variables: each worker is a thread, and waits for the others in an operation."""
CASES = Path(__file__).with_name("cases.yml")


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 1 if a program differs."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    line = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    line.add_argument("count", nargs="?", type=int, default=300)
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--program", type=json.loads)
    line.add_argument("--cases", action="store_true")
    line.add_argument("--whole", action="store_true", help="do not shrink")
    line.add_argument("--lanes", type=int, default=1)
    line.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    options = line.parse_args(given)
    seeds = range(options.seed, options.seed + options.count, options.step)
    if options.lanes > 1:
        return lanes(options.lanes, options.seed, options.count, ["--whole"] if options.whole else [])
    import keras
    import tensorflow as tf

    from tests.oracle.comparing import attempt
    from tests.oracle.programs import of

    keras.config.set_floatx("float64")
    tf.get_logger().setLevel("ERROR")
    if options.program:
        try:
            program = of(options.program)
        except TypeError as error:
            line.error(f"--program: {error}")
        print(attempt(program) or "the same")
        return 0
    if options.cases:
        cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
        print(json.dumps({case["name"]: attempt(of(case["program"])) for case in cases}))
        return 0
    return int(search(seeds, shrinks=not options.whole) > 0)


def lanes(count: int, seed: int, programs: int, more: Sequence[str]) -> int:
    """Try programs in several processes; the largest of their exit codes."""
    words = [sys.executable, "-m", "tests.oracle", "--step", str(count), *more]
    started = [subprocess.Popen([*words, str(programs - lane), "--seed", str(seed + lane)]) for lane in range(count)]
    return max(process.wait() for process in started)


def search(seeds: Sequence[int], shrinks: bool) -> int:
    """Try random programs; how many differ."""
    from tests.oracle.comparing import ROUNDING, attempt, shrunk
    from tests.oracle.programs import Program, made

    differing, rounding, begun = 0, 0, time.monotonic()
    for seed in seeds:
        program = made(seed)
        found = attempt(program)
        if found == ROUNDING:
            rounding += 1
        elif found:
            differing += 1
            least = shrunk(program) if shrinks else program
            print(f"{seed}: {attempt(least) or found}\n    {json.dumps(shown(least, Program()))}", flush=True)
        number = seeds.index(seed) + 1
        if not number % 10:
            print(f"{number} of {len(seeds)} programs, {differing} differ", file=sys.stderr, flush=True)
    seconds = (time.monotonic() - begun) / max(1, len(seeds))
    print(f"{len(seeds)} programs: {differing} differ, {rounding} magnify rounding; {seconds:.2f} s each")
    return differing


def shown(program: Any, default: Any) -> dict[str, Any]:
    """What a program has that the smallest has not."""
    every = asdict(default)
    return {name: value for name, value in asdict(program).items() if value != every[name]}


if __name__ == "__main__":
    sys.exit(main())
