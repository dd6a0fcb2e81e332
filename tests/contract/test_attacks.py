"""Somebody else writes the folder that all workers read: nothing of it is used, the message says what to do, and doing that helps.

That an evaluation refuses changed code, too: tests/training/test_attacks.py.
"""

import json
import shutil
from pathlib import Path

import pytest

from control.common import configurations
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE

SMALL = ("config=task_cnn", "epochs=1", "set=train.global_batch=20,reduction.name=packed")
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
    argv = [
        str(shutil.which("python3")),
        "-c",
        HEAD + program,
        "{{ dfs_path }}",
        "{{ published.code | basename }}",
        "{{ published.folder | basename }}",
    ]
    return project.train_attacked(argv, f"run={run}", f"dataset={pictures}", *SMALL, *more)


ATTACKS = {
    "all": (ZIP + LABELS + PACK, ".zip has SHA-256"),
    "labels": (LABELS, "manifest.json has SHA-256"),
    "pack": (PACK, "data-00000.pack: "),
}


def caches(project: LocalProject) -> Path:
    """What hosts keep of published data and code."""
    return project.root / ".lockstep/caches"


def change_images(caches: Path) -> None:
    """Blacken the last of the cached images."""
    (images,) = caches.glob("*-32x32x3/train-images.npy")
    data = bytearray(images.read_bytes())
    data[-20_000:] = bytes(20_000)
    images.write_bytes(data)


@pytest.mark.parametrize("kind", ["all", pytest.param("labels", marks=EXHAUSTIVE), pytest.param("pack", marks=EXHAUSTIVE)])
def test_changed_files_are_refused_and_published_again(kind, project, pictures, hosts):
    """The same command mends them; it finds a changed cache, too, and ends with the weights of a run that nobody attacked."""
    (program, file), name = ATTACKS[kind], f"attacked-{kind}"
    done = attack(project, program, name, pictures)
    assert done.returncode != 0, done.stdout[-3000:]
    for text in ("First failure: worker", file, "was published", "Fix: run the same command again"):
        assert text in done.stdout
    assert "Traceback" not in done.stdout
    peaceful = hosts(workers=1)
    weights = peaceful.train(configurations.load(project.run(name) / "config.yml"))["weights_sha256"]
    shutil.copytree(peaceful.root / "caches", caches(project), dirs_exist_ok=True)
    change_images(caches(project))
    again = project.play("train", f"run={name}", f"dataset={pictures}", *SMALL)
    assert f"{name}: SUCCEEDED" in again.stdout
    assert project.summary(name)["weights_sha256"] == weights
    logs = "".join((project.run(name) / f"workers/worker{number}/worker.log").read_text() for number in (1, 2))
    assert "was changed since it was built; it is built again" in logs
    assert not (project.root / ".lockstep/dfs/harm").exists()


@EXHAUSTIVE
def test_run_continues_with_what_was_published(project, pictures):
    project.play("train", "run=twice", f"dataset={pictures}", *SMALL, "epochs=2")
    project.play("train", "run=resumed", f"dataset={pictures}", *SMALL)
    cluster = json.loads((project.run("resumed") / "cluster.json").read_text())
    attack_now(project, cluster, ZIP + LABELS + PACK)
    project.play("train", "run=resumed", f"dataset={pictures}", *SMALL, "epochs=2")
    assert project.summary("resumed")["weights_sha256"] == project.summary("twice")["weights_sha256"]
    assert not (project.root / ".lockstep/dfs/harm").exists()


def attack_now(project: LocalProject, cluster: dict, program: str) -> None:
    """An attack while nothing runs."""
    argv = [str(project.root / ".lockstep" / "dfs"), cluster["code"], cluster["dataset"]["folder_name"]]
    exec(compile(HEAD.replace("sys.argv[1:]", repr(argv)) + program, "attack", "exec"), {})
