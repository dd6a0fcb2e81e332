"""Modules beside a user's file: found without running it, then imported from their texts."""

import subprocess
import sys

import pytest

from control.common import user_files
from trainer.common.errors import ConfigError
from trainer.user_code import user_function

MINE = "import nets.unet\nfrom helpers import twice\nimport numpy\nimport os\n\n\ndef build():\n    return twice(nets.unet.SIZE)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nets").mkdir()
    files = {
        "mine.py": MINE,
        "helpers.py": "from more import FACTOR\n\ndef twice(value):\n    return FACTOR * value\n",
        "more.py": "FACTOR = 2\n",
        "nets/__init__.py": "",
        "nets/unet.py": "from . import sizes\nSIZE = sizes.SIZE\n",
        "nets/sizes.py": "SIZE = 21\n",
        "unused.py": "raise SystemExit(1)\n",
        "os.py": "raise SystemExit(1)\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_file_imports_beside_it_travels_with_it(folder):
    function = user_files.find("model", f"{folder}/mine.py:build")
    assert list(function.modules) == ["helpers.py", "more.py", "nets/__init__.py", "nets/sizes.py", "nets/unet.py"]
    assert user_function.Function.of(function.entry) == user_function.Function("mine.py", "build", MINE, None, function.modules)


def test_another_machine_has_only_the_texts(folder, tmp_path):
    """In a process of its own: the modules stay imported."""
    entry = user_files.find("model", f"{folder}/mine.py:build").entry
    for file in folder.rglob("*.py"):
        file.unlink()
    program = "from trainer.user_code import user_function as f; print(f.load('model', f.Function.of(json.load(sys.stdin)))())"
    import json

    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys; {program}"], input=json.dumps(entry), capture_output=True, text=True, check=True
    )
    assert done.stdout == "42\n"


def test_error_in_module_is_reported_with_its_line(folder):
    (folder / "broken_beside.py").write_text("VALUE = 1\n\ndef fails():\n    raise ValueError('no luck')\n")
    (folder / "fails.py").write_text("import broken_beside\n\ndef build():\n    broken_beside.fails()\n")
    function = user_files.find("model", f"{folder}/fails.py:build")
    build = user_function.load("model", function)
    with (
        pytest.raises(ConfigError, match=r"model=fails.py:build, broken_beside.py line 4: ValueError: no luck"),
        user_function.explaining_errors("model", function),
    ):
        build()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"helpers.py": "def"}, r"model=.*mine.py:build: not Python: .* \(helpers.py, line 1\)"),
        ({"helpers.py": b"\xff"}, "helpers.py: it is not UTF-8"),
        ({"helpers.py": "#" * 2**20}, "beside it that it imports have .* at most 1,048,576"),
        ({"mine.py": "import trainer", "trainer.py": ""}, "trainer: a module of Lockstep has this name; rename"),
    ],
)
def test_a_module_that_cant_travel_is_refused(folder, files, message):
    for name, contents in files.items():
        (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    with pytest.raises(ConfigError, match=message):
        user_files.find("model", f"{folder}/mine.py:build")


def test_two_modules_with_one_name_are_refused():
    user_function._install({"beside_one.py": "VALUE = 1"}, None)
    user_function._install({"beside_one.py": "VALUE = 1"}, None)
    with pytest.raises(ConfigError, match=r"beside_one.py: two files of yours .* differ; rename one"):
        user_function._install({"beside_one.py": "VALUE = 2"}, None)
    with pytest.raises(ConfigError, match=r"numpy.py: a module with the name numpy is in use; rename the file"):
        user_function._install({"numpy.py": ""}, None)


def test_functions_of_a_file_share_its_variables(tmp_path):
    """As a weight that a callback moves, and a loss reads."""
    (tmp_path / "mine.py").write_text("moved = []\ndef move():\n    moved.append(1)\ndef read():\n    return moved\n")
    move, read = (user_function.load("model", user_files.find("model", f"{tmp_path}/mine.py:{name}")) for name in ("move", "read"))
    move()
    assert read() == [1]
