"""What all tests keep to: short names, no sleeps, and no limit of the time that something took."""

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.samples import ROOT

WORDS = 8
"""Most words of a name after `test_`; the sentence is the docstring's."""
EXCEPTIONS = ROOT / "tests" / "exceptions.txt"
"""What was there before these rules, a `file::test rule` a line; each goes when it is mended, and none is added."""
CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
FILES = sorted(path for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts)


def breaches(path: Path) -> Iterator[str]:
    """`test rule` for each rule that a function at the top of a file breaks."""
    text = path.read_text(encoding="utf-8")
    reads = any(f".{name}(" in text for name in CLOCKS)
    for function in ast.parse(text).body:
        if isinstance(function, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if function.name.startswith("test_") and len(function.name.split("_")) - 1 > WORDS:
                yield f"{function.name} name"
            if "sleep(" in text and "unit" in path.relative_to(ROOT / "tests").parts and any(map(sleeps, ast.walk(function))):
                yield f"{function.name} sleep"
            if reads and limits_time(function):
                yield f"{function.name} time"


def sleeps(node: ast.AST) -> bool:
    """A call of `sleep`; `asyncio.sleep(0)` only lets others go on."""
    if not isinstance(node, ast.Call):
        return False
    yields = ast.unparse(node) == "asyncio.sleep(0)" or fake(node)
    return not yields and (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) == "sleep"


def fake(call: ast.Call) -> bool:
    """A call of a test's own clock, `tests.fake_clock`."""
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).endswith("clock")


def limits_time(function: ast.AST) -> bool:
    """An assertion that a difference of two readings of a clock is below something, directly or by a variable."""
    elapsed = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and took(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    compared = (part for node in ast.walk(function) if isinstance(node, ast.Assert) for part in ast.walk(node))
    return any(isinstance(part, ast.Compare) and below(part, elapsed) for part in compared)


def below(compare: ast.Compare, elapsed: set[str]) -> bool:
    """A comparison in which a time that something took is on the smaller side."""
    sides = [compare.left, *compare.comparators]
    smaller = [
        pair[isinstance(sign, ast.Gt | ast.GtE)]
        for pair, sign in zip(itertools.pairwise(sides), compare.ops, strict=True)
        if isinstance(sign, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    ]
    return any(took(side, elapsed) for side in smaller)


def took(node: ast.AST, elapsed: set[str]) -> bool:
    """A difference with a reading of a clock, or a variable that holds one."""
    reads = any(isinstance(part, ast.Call) and getattr(part.func, "attr", "") in CLOCKS and not fake(part) for part in ast.walk(node))
    return (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and reads) or (isinstance(node, ast.Name) and node.id in elapsed)


def listed() -> set[str]:
    return set(EXCEPTIONS.read_text(encoding="utf-8").splitlines())


@functools.cache
def found() -> set[str]:
    return {f"{path.relative_to(ROOT)}::{breach}" for path in FILES for breach in breaches(path)}


def test_tests_keep_to_the_rules():
    """Names have at most eight words, unit tests do not sleep, and no test limits the time that something takes."""
    assert sorted(found() - listed()) == []


def test_exceptions_still_exist():
    """Those that were mended, renamed or removed leave the list: `python -m tests.unit.test_tests`."""
    assert sorted(listed() - found()) == []


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("pass", []),
        ("time.sleep(1)", ["sleep"]),
        ("sleep(1)", ["sleep"]),
        ("asyncio.sleep(0)", []),
        ("assert time.monotonic() - begun < 5", ["time"]),
        ("assert 5 > time.perf_counter() - begun", ["time"]),
        ("seconds = time.time() - begun\n    assert 0 < seconds <= 5", ["time"]),
        ("assert time.monotonic() - begun > 5", []),
        ("assert count < 5", []),
    ],
)
def test_breaches_are_found(body, rules, tmp_path, monkeypatch):
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    path = tmp_path / "tests" / "unit" / "test_x.py"
    path.write_text(f"def test_a_b_c_d_e_f_g_h():\n    {body}\n\n\ndef test_a_b_c_d_e_f_g_h_i():\n    pass\n")
    monkeypatch.setattr(__name__ + ".ROOT", tmp_path)
    assert list(breaches(path)) == [*(f"test_a_b_c_d_e_f_g_h {rule}" for rule in rules), "test_a_b_c_d_e_f_g_h_i name"]


if __name__ == "__main__":
    EXCEPTIONS.write_text("".join(f"{line}\n" for line in sorted(listed() & found())), encoding="utf-8")
