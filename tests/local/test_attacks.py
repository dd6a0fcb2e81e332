"""Somebody else writes the folder that all workers read: nothing of it is used, the message says what to do, and doing that helps."""

import json
import shutil

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE

SMALL = ("config=task_cnn", "epochs=1", "set=train.global_batch=20,optimizer.learning_rate=0.005,reduction.name=packed")
HEAD = """
import json, pathlib, shutil, sys, warnings, zipfile
dfs, code, name = sys.argv[1:]
code, data = pathlib.Path(dfs, "code", code), pathlib.Path(dfs, "datasets", name)
caches = pathlib.Path(dfs).with_name("caches")
"""
# A host that has a copy of its own does not look at the shared one.
ZIP = """
shutil.rmtree(caches / "code", ignore_errors=True)
with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(code, "a") as archive:
    archive.writestr("trainer/__init__.py", f"open({str(pathlib.Path(dfs, 'harm'))!r}, 'a').write('harm')")
"""
LABELS = """
manifest = json.loads((data / "manifest.json").read_text())
manifest["train"]["labels"] = [0] * len(manifest["train"]["labels"])
(data / "manifest.json").write_text(json.dumps(manifest))
"""
PACK = """
for cache in caches.glob(f"{name}-*x*"):
    shutil.rmtree(cache) if cache.is_dir() else cache.unlink()
pack = data / "data-00000.pack"
changed = bytearray(pack.read_bytes())
changed[len(changed) // 2] ^= 1
pack.write_bytes(changed)
"""


def attack(project: LocalProject, program: str, run: str, pictures, *more: str):
    """A training, attacked between publication and start."""
    argv = [str(shutil.which("python3")), "-c", HEAD + program, "{{ dfs_path }}", "{{ published.code_name }}", "{{ published.name }}"]
    return project.train_attacked(argv, f"run={run}", f"dataset={pictures}", *SMALL, *more)


@pytest.fixture(scope="module")
def weights(project, pictures):
    """Of a run that nobody attacked."""
    project.play("train", "run=peaceful", f"dataset={pictures}", *SMALL)
    return project.summary("peaceful")["weights_sha256"]


ATTACKS = {"zip": (ZIP, ".zip has SHA-256"), "labels": (LABELS, "manifest.json has SHA-256"), "pack": (PACK, "data-00000.pack: ")}


@pytest.mark.parametrize("kind", ["zip", pytest.param("labels", marks=EXHAUSTIVE), "pack"])
def test_what_was_changed_after_it_was_published_is_not_used_and_the_same_command_mends_it(kind, project, pictures, weights):
    name, (program, file) = f"attacked-{kind}", ATTACKS[kind]
    done = attack(project, program, name, pictures)
    assert done.returncode != 0, done.stdout[-3000:]
    assert "First failure: worker" in done.stdout
    assert file in done.stdout
    assert "was published" in done.stdout
    assert "Fix: run the same command again" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project.root / ".lockstep" / "dfs" / "harm").exists()
    again = project.play("train", f"run={name}", f"dataset={pictures}", *SMALL)
    assert "SUCCEEDED" in again.stdout
    assert project.summary(name)["weights_sha256"] == weights


@EXHAUSTIVE
def test_a_run_goes_on_and_is_evaluated_with_what_was_published_whatever_became_of_it(project, pictures, weights):
    whole = project.play("train", "run=whole2", f"dataset={pictures}", *SMALL, "epochs=2")
    assert "SUCCEEDED" in whole.stdout
    project.play("train", "run=resumed", f"dataset={pictures}", *SMALL)
    cluster = json.loads((project.run("resumed") / "cluster.json").read_text())
    attack_now(project, cluster, ZIP + LABELS + PACK)
    project.play("train", "run=resumed", f"dataset={pictures}", *SMALL, "epochs=2")
    assert project.summary("resumed")["weights_sha256"] == project.summary("whole2")["weights_sha256"]
    attack_now(project, cluster, ZIP)
    tested = project.play("evaluate", "run=resumed", "epoch=last").stdout
    assert not (project.root / ".lockstep" / "dfs" / "harm").exists()
    assert "resumed on its test images" in tested


def test_a_changed_cache_is_made_anew(project, pictures, weights):
    for cache in (project.root / ".lockstep" / "caches").glob("*-32x32x3/train-images.npy"):
        data = bytearray(cache.read_bytes())
        data[-20_000:] = bytes(20_000)
        cache.write_bytes(data)
    project.play("train", "run=cached", f"dataset={pictures}", *SMALL)
    logs = "".join((project.run("cached") / "workers" / f"worker{number}" / "worker.log").read_text() for number in (1, 2))
    assert "was changed since it was built; it is built again" in logs
    assert project.summary("cached")["weights_sha256"] == weights


def attack_now(project: LocalProject, cluster: dict, program: str) -> None:
    """An attack while nothing runs."""
    argv = [str(project.root / ".lockstep" / "dfs"), cluster["code"], cluster["dataset"]["folder_name"]]
    exec(compile(HEAD.replace("sys.argv[1:]", repr(argv)) + program, "attack", "exec"), {})
