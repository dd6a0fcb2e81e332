"""The trainer as one file, named by its digest."""

import os
import shutil
import zipfile
import zipimport

import pytest

from trainer import package


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the trainer that can be changed."""
    folder = tmp_path / "copy" / "trainer"
    shutil.copytree(package.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(package, "PACKAGE", folder)
    return folder


def test_the_same_bytes_each_time(copy, tmp_path):
    first = package.build(tmp_path / "a")
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    second = package.build(tmp_path / "b")
    assert first.name == second.name == f"trainer-{package.digest()}.zip"
    assert first.read_bytes() == second.read_bytes()


def test_what_is_in_it(tmp_path):
    with zipfile.ZipFile(package.build(tmp_path)) as archive:
        names = archive.namelist()
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    assert {"trainer/__init__.py", "trainer/__main__.py", "trainer/data/folder.py", "trainer/models/cnn.py"} <= set(names)
    assert not [name for name in names if "analysis" in name or "__pycache__" in name or not name.endswith(".py")]
    assert len(set(names)) == len(names)


def test_python_can_import_it(tmp_path):
    importer = zipimport.zipimporter(str(package.build(tmp_path)))
    assert importer.is_package("trainer")
    assert "python -m trainer" in importer.get_source("trainer/__main__")


def test_an_archive_that_is_there_is_not_built_again(tmp_path):
    built = package.build(tmp_path)
    built.write_bytes(b"as it was")
    assert package.build(tmp_path) == built
    assert built.read_bytes() == b"as it was"
    assert list(tmp_path.iterdir()) == [built]


def test_digest_is_short_and_equal_for_a_copy(copy, monkeypatch):
    of_copy = package.digest()
    monkeypatch.undo()
    assert package.digest() == of_copy
    assert len(of_copy) == 16


@pytest.mark.parametrize("change", ["content", "name", "new file", "removed"])
def test_digest_changes_with_the_sources(change, copy):
    before, source = package.digest(), copy / "schedule.py"
    if change == "content":
        source.write_text(source.read_text() + "# changed\n")
    elif change == "name":
        source.rename(copy / "timetable.py")
    elif change == "new file":
        (copy / "models" / "mine.py").touch()
    else:
        source.unlink()
    assert package.digest() != before


@pytest.mark.parametrize("name", ["analysis/text.py", "analysis/new.py", "configs/task_cnn.yml", "notes.txt"])
def test_digest_does_not_change_with_what_nodes_never_see(name, copy):
    before = package.digest()
    (copy / name).write_text("changed")
    assert package.digest() == before
