"""Code as one file, named by its digest."""

import dataclasses
import hashlib
import os
import shutil
import zipfile
import zipimport

import pytest

from benchmarks.shared.benchmark import CODE
from control.common.project import ROOT
from control.remote.trainer_package import TRAINER


@pytest.fixture
def copy(tmp_path):
    """The archive of a copy of the project that can be changed."""
    for folder in ("trainer", "control", "plugins", "roles", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / "copy" / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    return dataclasses.replace(TRAINER, root=tmp_path / "copy")


def test_the_same_bytes_each_time(copy, tmp_path):
    first = copy.build(tmp_path / "a")
    for path in (copy.root / "trainer").rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    second = copy.build(tmp_path / "b")
    assert first.name == second.name == f"trainer-{TRAINER.sha256()[:16]}.zip"
    assert first.read_bytes() == second.read_bytes()


def test_package_is_all_code_of_its_folder(tmp_path):
    """It is all code of its folder and nothing else."""
    with zipfile.ZipFile(TRAINER.build(tmp_path)) as archive:
        names = archive.namelist()
        # Compressed, its bytes and its digest would depend on this machine's library.
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "trainer").rglob("*.py"))
    assert {"trainer/__main__.py", "trainer/models/cnn.py"} <= set(names)


@pytest.mark.parametrize(("archive", "module"), [(TRAINER, "trainer"), (CODE, "benchmarks.node"), (CODE, "trainer")])
def test_python_can_import_it(archive, module, tmp_path):
    package, _, rest = module.partition(".")
    importer = zipimport.zipimporter(str(archive.build(tmp_path)))
    assert importer.is_package(package)
    assert f"python -m {module}" in importer.get_source("/".join([package, *rest.split(".")] if rest else [package]) + "/__main__")


def test_kept_archive_stays_and_a_changed_is_rebuilt(tmp_path):
    built = TRAINER.build(tmp_path)
    before = built.stat()
    assert TRAINER.build(tmp_path) == built
    assert (built.stat().st_ino, built.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with zipfile.ZipFile(built, "a") as archive:
        archive.writestr("trainer/sitecustomize.py", "print('harm')")
    assert TRAINER.build(tmp_path) == built
    assert hashlib.sha256(built.read_bytes()).hexdigest() == TRAINER.sha256()
    assert list(tmp_path.iterdir()) == [built]


@pytest.mark.parametrize("change", ["content", "name", "new file", "removed"])
def test_the_digest_changes_with_the_code_of_nodes(change, copy):
    before, source = copy.sha256(), copy.root / "trainer" / "config" / "schedule.py"
    if change == "content":
        source.write_text(source.read_text() + "# changed\n")
    elif change == "name":
        source.rename(source.with_name("timetable.py"))
    elif change == "new file":
        source.with_name("new.py").touch()
    else:
        source.unlink()
    assert copy.sha256() != before


def test_no_file_outside_the_trainer_changes_the_digest(copy):
    before = copy.sha256()
    others = [path for path in copy.root.rglob("*") if path.is_file() and not path.is_relative_to(copy.root / "trainer")]
    assert len(others) > 200
    for path in others:
        if not path.is_symlink():
            path.write_text("changed")
    (copy.root / "control" / "new.py").touch()
    (copy.root / "trainer" / "configs" / "mine.yml").write_text("model: {name: task_cnn}")
    assert copy.sha256() == before
