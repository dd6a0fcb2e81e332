"""What the runner of Keras' own tests makes of what happened."""

import importlib.metadata
from types import SimpleNamespace

import pytest

from tests.keras_suite.__main__ import SKIPPED, both, main, report, unlike


def test_another_version_is_refused_with_the_command(tmp_path, capsys):
    file = tmp_path / "keras" / "src" / "version.py"
    file.parent.mkdir(parents=True)
    file.write_text('__version__ = "1.0"\n')
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    version = importlib.metadata.version("keras")
    assert f"is no checkout of Keras {version}. Fix: git clone --depth 1 --branch v{version} https://" in capsys.readouterr().err
    file.write_text(f'__version__ = "{version}"\n')
    assert not unlike(tmp_path)


def outcome(kind="passed", worked=3, why="", numbers=(1.0,)):
    return SimpleNamespace(kind=kind, worked=worked, why=why, numbers=numbers, like=lambda other: other.numbers == numbers)


def test_a_test_passes_only_on_both_ranks():
    good = outcome()
    assert both(good, [good, good]) == ("passed", "")
    assert both(good, [good, outcome(worked=0)])[0] == "does not train"
    assert both(good, [good, outcome("failed", why="1 != 2")]) == ("failed", "rank 1: 1 != 2")
    assert both(good, [good, outcome(numbers=(2.0,))]) == ("failed", "other numbers than alone: [1, 1, 1] numbers; [[1.0, 1.0, 2.0]]")


def test_a_failure_is_in_table_and_exit_code(tmp_path, capsys):
    folder = tmp_path / "logs"
    folder.mkdir()
    assert report({"a_test.py::one": ("failed", "rank 1: 1 != 2"), "a_test.py::two": ("passed", "")}, folder, tmp_path) == 1
    printed = capsys.readouterr().out
    assert "failed: a_test.py::one: rank 1: 1 != 2" in printed
    assert f"make keras-tests KERAS_TESTS={tmp_path} ARGS='a_test.py::one'" in printed
    assert folder.exists()
    assert report({"a_test.py::two": ("passed", "")}, folder, tmp_path) == 0
    assert not folder.exists()


def test_each_skipped_test_has_a_reason():
    import yaml

    skipped = yaml.safe_load(SKIPPED.read_text(encoding="utf-8"))
    assert all("::" in test and len(reason.split()) > 3 for test, reason in skipped.items())
