"""The environments of the peers: wheels gathered on the control node, and Horovod built there, once.

An unavailable peer is a result, not a failure: `gather` raises, and its caller records the reason.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peer_results.peer_trials import HOROVOD, TORCH
from control.common import project
from control.provision import wheels
from control.remote.trainer_package import Archive
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file, write_text

CODE = Archive("peers", ("trainer",), flat="benchmarks/peers")
REQUIREMENTS = project.ROOT / "benchmarks" / "peers" / "requirements"
ROOT = project.PRIVATE / "peers"
MODULES = {TORCH: ["torch", "numpy"], HOROVOD: ["tensorflow", "horovod.tensorflow", "horovod.runner.http.http_server"]}
"""Modules that must import on a host before an environment counts as complete."""
NEED_MB = {TORCH: 1600, HOROVOD: 1800}
BUILD = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "MAKEFLAGS": "-j1",
    "CMAKE_BUILD_PARALLEL_LEVEL": "1",
}
TOOLS = ("g++", "cmake", "make")
BUILD_S = 5400
Progress = Callable[[str], None]


def gather(environment: str, target: wheels.Target, progress: Progress) -> dict[str, Any]:
    """The wheels of an environment for one kind of host: `folder`, its `name` on the distributed file system, `digest`, `sums`.

    Raises:
        LockstepError: they are unavailable here; says why.
    """
    lock, folder = _lock(REQUIREMENTS / f"{environment}.txt"), ROOT / "wheels" / f"{environment}-{target.key}"
    uv = next((pin for pin in _lock(project.ROOT / "requirements" / "control.txt") if pin.name == "uv"), None)
    gathering = wheels.Gathering(target, lock, uv, folder, progress)
    index = gathering.complete() or gathering.gather()
    if environment != HOROVOD:
        return _published(gathering.folder, environment, target, wheels.digest(index), wheels.sums(index, gathering.folder))
    return _with_built(gathering, index, _built(target, gathering.folder, wheels.digest(index), progress))


def _lock(path: Path) -> list[wheels.Pin]:
    return wheels.pins(path.read_text(encoding="utf-8"))


def _published(folder: Path, environment: str, target: wheels.Target, digest: str, sums: dict[str, str]) -> dict[str, Any]:
    return {"folder": str(folder), "name": f"peers-{environment}-{target.key}-{digest}", "digest": digest, "sums": sums}


def _with_built(gathering: wheels.Gathering, index: Mapping[str, Any], wheel: Path) -> dict[str, Any]:
    """A separate folder with links to all wheels and the built one, so that the gathered folder stays as locked."""
    own = sha256_file(wheel)
    digest = hashlib.sha256(f"{wheels.digest(dict(index))} {own}".encode()).hexdigest()[:16]
    folder = ROOT / "published" / f"{gathering.target.key}-{digest}"
    files = [gathering.folder / name for name in index["wheels"]] + ([gathering.folder / index["uv"]["file"]] if index["uv"] else [])
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*files, wheel]:
        if not (folder / file.name).exists():
            os.link(file, folder / file.name)
    wish = (gathering.folder / wheels.REQUIREMENTS).read_text(encoding="utf-8")
    write_text(folder / wheels.REQUIREMENTS, f"{wish}{wheel.name.split('-')[0]}=={wheel.name.split('-')[1]} --hash=sha256:{own}\n")
    return _published(folder, HOROVOD, gathering.target, digest, wheels.sums(dict(index), folder) | {wheel.name: own})


def _built(target: wheels.Target, folder: Path, digest: str, progress: Progress) -> Path:
    """Horovod's wheel for one kind of host, built here against the TensorFlow of these wheels."""
    base = ROOT / "built" / f"{target.key}-{digest}"
    for wheel in base.glob("horovod-*.whl"):
        return wheel
    python = _builder(target)
    shutil.rmtree(base, ignore_errors=True)
    (base / "out").mkdir(parents=True)
    try:
        _build(base, python, folder, progress)
    finally:
        shutil.rmtree(base / "venv", ignore_errors=True)
    (wheel,) = (base / "out").glob("horovod-*.whl")
    # Renamed last, so an existing wheel is a complete build.
    return wheel.rename(base / wheel.name)


def _build(base: Path, python: str, folder: Path, progress: Progress) -> None:
    """Build Horovod's wheel in `<place>/out`, in an environment with its build dependencies."""
    progress("building Horovod: its environment")
    builder, uv = str(base / "venv" / "bin" / "python"), str(Path(sys.executable).with_name("uv"))
    _run([uv, "venv", "--quiet", "--offline", "--no-project", "--python", python, str(base / "venv")], {}, base, progress)
    offline = ["--offline", "--no-index", "--find-links", str(folder), "--require-hashes", "-r", str(folder / wheels.REQUIREMENTS)]
    _run([uv, "pip", "install", "--quiet", "--python", builder, *offline], {}, base, progress)
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--no-cache-dir", "--require-hashes"]
    options += ["--wheel-dir", str(base / "out"), "-r", str(REQUIREMENTS / "horovod-source.txt")]
    path = f"{base / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    argv = ["nice", "-n", "15", sys.executable, "-m", "pip", "--python", builder, "wheel", *options]
    _run(argv, {**BUILD, "PATH": path}, base, progress)


def _builder(target: wheels.Target) -> str:
    """A Python on this machine that matches the hosts'."""
    if os.uname().machine != target.machine:
        raise LockstepError(f"Horovod is built on the control node, which is {os.uname().machine}; the hosts are {target.machine}")
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        raise LockstepError(f"Horovod is built on the control node, which lacks {', '.join(missing)}: apt-get install g++ cmake make")
    if sys.version_info[:2] == tuple(int(part) for part in target.short.split(".")):
        return sys.executable
    python = shutil.which(f"python{target.short}")
    if not python:
        raise LockstepError(f"Horovod is built on the control node with the hosts' Python {target.short}, which is not installed here")
    return python


def _run(argv: list[str], environment: Mapping[str, str], base: Path, progress: Progress) -> None:
    """Run a step of the build; its output goes to build.log."""
    log = base / "build.log"
    lines = []
    with (
        log.open("a", encoding="utf-8") as stream,
        subprocess.Popen(
            ["timeout", str(BUILD_S), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            lines.append(line.strip())
            if "%]" in line:
                progress(f"building Horovod: {line.strip()[:70]}")
    if process.returncode != 0:
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
        raise LockstepError(f"Horovod can't be built here: {errors[-1][:200]} (all of it: {project.relative(log)})")


def programs() -> Path:
    """One file with the peer programs and this project's trainer."""
    return CODE.build(ROOT / "code")
