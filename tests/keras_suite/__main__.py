"""Run Keras' own tests on two workers of Lockstep.

python -m tests.keras_suite DIR [TEXT ...]    those of a checkout of Keras' repository; only those whose names have one of these texts
"""

import argparse
import gc
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from control.common import text

SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "KERAS_BACKEND": "tensorflow",
}
FILES = (
    "callbacks/*_test.py",
    "optimizers/**/*_test.py",
    "metrics/*_test.py",
    "losses/*_test.py",
    "models/*_test.py",
    "backend/tensorflow/*_test.py",
    "trainers/trainer_test.py",
    "layers/**/*_test.py",
)
KINDS = ("passed", "does not train", "skipped", "no pass alone", "failed")
SKIPPED = Path(__file__).with_name("skipped.yml")


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 1 if a test fails on two workers that passes on one."""
    line = argparse.ArgumentParser(prog="python -m tests.keras_suite", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    line.add_argument("checkout", type=Path, metavar="DIR")
    line.add_argument("texts", nargs="*", metavar="TEXT")
    options = line.parse_args(given)
    if wrong := unlike(options.checkout):
        line.error(wrong)
    folder = copied(options.checkout)
    files = [str(path.relative_to(folder)) for pattern in FILES for path in sorted(folder.glob(pattern))]
    results = tried(folder, files, options.texts)
    if not results:
        shutil.rmtree(folder)
        line.error(f"{' '.join(options.texts)}: no test has this in its name. Fix: a file or a test, as in optimizers/adam_test.py")
    return report(results, folder, options.checkout)


def unlike(checkout: Path) -> str:
    """Why a folder is no checkout of the Keras that is installed; empty if it is."""
    version, file = importlib.metadata.version("keras"), checkout / "keras" / "src" / "version.py"
    found = file.read_text(encoding="utf-8") if file.is_file() else ""
    if f'__version__ = "{version}"' in found:
        return ""
    return (
        f"{checkout}/ is no checkout of Keras {version}. Fix: git clone --depth 1 --branch v{version} "
        "https://github.com/keras-team/keras DIR, and make keras-tests KERAS_TESTS=DIR"
    )


def copied(checkout: Path) -> Path:
    """The tests alone, in a new folder: Keras is the installed one, and the tests' layers are not taken for its own."""
    folder = Path(tempfile.mkdtemp(prefix="keras-tests-"))
    for file in (checkout / "keras" / "src").rglob("*_test.py"):
        to = folder / file.relative_to(checkout / "keras" / "src")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    shutil.copyfile(checkout / "conftest.py", folder / "conftest.py")
    return folder


def tried(folder: Path, files: Sequence[str], texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By test, one of KINDS and why."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # What a process imports before it is forked is never garbage.
    gc.disable()
    from tests.keras_suite import running

    results = dict[str, tuple[str, str]]()
    for number, file in enumerate(files, 1):
        if texts and not any(text in file or file in text for text in texts):
            continue
        print(f"{number} of {len(files)}: {file}", flush=True)
        plain = {test: one for test, one in running.alone(folder, file).items() if not texts or any(text in test for text in texts)}
        found = judged(running, folder, plain)
        # Many have no pass alone for one reason.
        for (kind, why), test in {result: test for test, result in found.items() if result[1]}.items():
            print(f"  {kind}: {test.partition('::')[2]}: {why[:200]}", flush=True)
        results |= found
    return results


def judged(running: Any, folder: Path, plain: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """By test, one of KINDS and why; `plain`: what became of each alone."""
    skipped, found = yaml.safe_load(SKIPPED.read_text(encoding="utf-8")), dict[str, tuple[str, str]]()
    for test, one in plain.items():
        if one.kind != "passed":
            found[test] = "no pass alone", one.why
        elif not one.worked:
            found[test] = "does not train", ""
        elif test in skipped:
            found[test] = "skipped", skipped[test]
    tests = [test for test in plain if test not in found]
    together = running.on_workers(folder, tests) if tests else {}
    for test in tests:
        found[test] = both(plain[test], together[test])
        if found[test][0] == "failed":
            # Another test may be the cause, and alone it may have other numbers without the tests before it.
            again = running.alone(folder, test)[test]
            found[test] = both(again, running.on_workers(folder, [test])[test])
            if found[test][0] == "failed" and not again.like(running.alone(folder, test)[test]):
                found[test] = "no pass alone", "its numbers are others each time"
    return {test: found[test] for test in plain}


def differing(numbers: Sequence[Sequence[float]]) -> str:
    """How many numbers there are alone and on each rank, and the first that differ."""
    first = [[round(one, 5) for one in some] for some in zip(*numbers, strict=False) if max(some) - min(some) > 1e-5]
    return f"{[len(one) for one in numbers]} numbers; {first[:3]}"


def both(plain: Any, ranks: Sequence[Any]) -> tuple[str, str]:
    """What became of a test, from what did alone and on each worker."""
    failed = [f"rank {rank}: {one.why or one.kind}" for rank, one in enumerate(ranks) if one.kind != "passed"]
    if failed:
        return "failed", "; ".join(failed)
    if not all(map(plain.like, ranks)):
        return "failed", f"other numbers than alone: {differing([each.numbers for each in (plain, *ranks)])}"
    return ("passed", "") if all(one.worked for one in ranks) else ("does not train", "the workers exchange nothing")


def report(results: dict[str, tuple[str, str]], folder: Path, checkout: Path) -> int:
    """Print a table, and what to do next; exit code."""
    counts = Counter((test.partition("::")[0], kind) for test, (kind, _) in results.items())
    files = list(dict.fromkeys(test.partition("::")[0] for test in results))
    totals = ["total", *(sum(counts[file, kind] for file in files) for kind in KINDS)]
    print(text.table(["", *KINDS], [*([file, *(counts[file, kind] for kind in KINDS)] for file in files), totals]))
    failed = [(test, why) for test, (kind, why) in results.items() if kind == "failed"]
    for test, why in failed:
        print(f"failed: {test}: {why[:300]}")
    if failed:
        print(f"tracebacks of each rank: {folder}/*.log\none again: make keras-tests KERAS_TESTS={checkout} ARGS='{failed[0][0]}'")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
