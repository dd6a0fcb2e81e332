"""The wheels that hosts install: chosen from the lock for a host's platform, gathered once, named by digest.

pip evaluates the lock's markers for the Python that runs it, which is wrong for another architecture; here
they are evaluated for the target.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from trainer.common.errors import LockstepError
from trainer.common.files import read_json, sha256_file, write_json, write_text

OLDEST_GLIBC = 17
NEWEST_GLIBC = 35
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REQUIREMENTS = "requirements.txt"
INDEX = "index.json"


@dataclass(frozen=True, order=True)
class Target:
    """Properties of a host that decide which wheels fit."""

    machine: str
    """`x86_64` or `aarch64`."""
    python: str
    """Full version, as `3.11.2`."""
    glibc: int = NEWEST_GLIBC
    """Minor version of the C library (36 for 2.36)."""
    gpu: bool = False
    """True if the host trains on GPUs: TensorFlow with the CUDA libraries."""

    @property
    def short(self) -> str:
        """`3.11`."""
        return ".".join(self.python.split(".")[:2])

    @property
    def key(self) -> str:
        """Name of the target's folder, as `x86_64-cp311` or `x86_64-cp311-gpu`."""
        return f"{self.machine}-cp{self.short.replace('.', '')}{'-gpu' if self.gpu else ''}"

    @property
    def lock(self) -> str:
        """Name of the lock in `requirements` that it installs."""
        return "node-gpu" if self.gpu else "node"

    def environment(self) -> dict[str, str]:
        """Values of PEP 508 markers that differ between such a host and the control node; both run CPython on Linux."""
        versions = {"implementation_version": self.python, "python_full_version": self.python, "python_version": self.short}
        return {"platform_machine": self.machine, **versions}


@dataclass(frozen=True)
class Pin:
    """One line of a lock."""

    name: str
    version: str
    marker: Marker | None
    hashes: frozenset[str]

    def line(self) -> str:
        """The requirement without its marker."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in sorted(self.hashes))])


def pins(lock: str) -> list[Pin]:
    """Every requirement of a lock.

    Raises:
        LockstepError: a line without an exact version or hash.
    """
    lines = (line for line in lock.splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    return [_pin(line) for line in joined.splitlines() if line.strip()]


def _pin(line: str) -> Pin:
    requirement = Requirement(line.partition("--hash")[0].strip())
    exact = [part.version for part in requirement.specifier if part.operator == "=="]
    hashes = frozenset(HASH.findall(line))
    if len(exact) != 1 or not hashes:
        raise LockstepError(f"requirements: {line[:60]}: expected name==version with hashes; lock again: make lock")
    return Pin(canonicalize_name(requirement.name), exact[0], requirement.marker, hashes)


def chosen(lock: Iterable[Pin], target: Target) -> list[Pin]:
    """The requirements that apply to a target."""
    environment = target.environment()
    return [pin for pin in lock if pin.marker is None or pin.marker.evaluate(environment)]


def merged(targets: Iterable[Target]) -> list[Target]:
    """One target per folder: the oldest Python and C library of those that share it."""
    oldest: dict[str, Target] = {}
    for target in targets:
        other = oldest.setdefault(target.key, target)
        python = min(target.python, other.python, key=Version)
        oldest[target.key] = replace(target, python=python, glibc=min(target.glibc, other.glibc))
    return sorted(oldest.values())


def _platforms(target: Target) -> list[str]:
    """Options that let pip take wheels for every C library up to the target's."""
    newest = min(target.glibc, NEWEST_GLIBC)
    tags = [f"manylinux_2_{minor}_{target.machine}" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
    # pip knows that manylinux2014 covers the older names, too.
    return [word for tag in [*tags, f"manylinux2014_{target.machine}", f"linux_{target.machine}"] for word in ("--platform", tag)]


def digest(index: dict[str, Any]) -> str:
    """16 hex digits over the names and digests of the packages' wheels."""
    lines = [f"{name} {index['wheels'][name]['sha256']}\n" for name in sorted(index["wheels"])]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def sums(index: dict[str, Any], folder: Path) -> dict[str, str]:
    """SHA-256 of every file that hosts use, by name: they compare what they read from the shared folder with these."""
    tool = {index["uv"]["file"]: index["uv"]["sha256"]} if index["uv"] else {}
    return {name: entry["sha256"] for name, entry in index["wheels"].items()} | tool | {REQUIREMENTS: sha256_file(folder / REQUIREMENTS)}


@dataclass
class Gathering:
    """The folder of one target's wheels on the control node."""

    target: Target
    lock: list[Pin]
    tool: Pin | None
    """uv: faster than pip on a slow host, and independent of its python3-venv."""
    folder: Path
    report: Callable[[str], None] = lambda _: None

    def complete(self) -> dict[str, Any] | None:
        """The index if everything in it is there for this very lock; otherwise None."""
        path = self.folder / INDEX
        index: dict[str, Any] = read_json(path) if path.is_file() else {}
        if index.get("lock") != self._lock_digest():
            return None
        files = {**index["wheels"], **({index["uv"]["file"]: index["uv"]} if index["uv"] else {})}
        present = all(_size(self.folder / name) == entry["size"] for name, entry in files.items())
        return index if present and (self.folder / REQUIREMENTS).is_file() else None

    def gather(self) -> dict[str, Any]:
        """Download what is missing, verify all, remove files of an older lock; returns the index.

        Raises:
            LockstepError: a wheel is unavailable, or is not the one in the lock.
        """
        wanted = chosen(self.lock, self.target)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / INDEX).unlink(missing_ok=True)
        write_text(self.folder / REQUIREMENTS, "".join(f"{pin.line()}\n" for pin in wanted))
        problem = self._download(self.folder / REQUIREMENTS, len(wanted))
        if problem:
            raise LockstepError(
                f"the wheels for {self.target.machine} and Python {self.target.short} can't be gathered: {problem}. Check what this "
                "machine's pip is set to (pip config list), or give a folder that holds them: WHEELS=DIR ansible-playbook provision.yml"
            )
        wheels = self._verified(wanted)
        index: dict[str, Any] = {"lock": self._lock_digest(), "wheels": wheels, "uv": self._gather_tool()}
        keep = {*wheels, REQUIREMENTS, INDEX, *([index["uv"]["file"]] if index["uv"] else [])}
        for path in self.folder.iterdir():
            if path.name not in keep:
                path.unlink()
        write_json(self.folder / INDEX, index)
        return index

    def _lock_digest(self) -> str:
        lines = [pin.line() for pin in chosen(self.lock, self.target)] + ([self.tool.line()] if self.tool else [])
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _gather_tool(self) -> dict[str, Any] | None:
        if self.tool is None:
            return None
        wish = self.folder / "tool.txt"
        write_text(wish, f"{self.tool.line()}\n")
        problem = self._download(wish, 1)
        if problem:
            self.report(f"uv {self.tool.version} is not available for {self.target.key} ({problem}); the hosts use pip, which takes longer")
            return None
        ((name, entry),) = self._verified([self.tool]).items()
        return {"file": name, **entry}

    def _download(self, wish: Path, count: int) -> str | None:
        """One-line message from pip if it fails."""
        wheels = os.environ.get("WHEELS")
        offline = ["--no-index", "--find-links", str(Path(wheels).resolve())] if wheels else []
        argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--progress-bar=off"]
        argv += ["--disable-pip-version-check", "--no-input", "--python-version", self.target.short, "--implementation", "cp"]
        argv += [*_platforms(self.target), *offline, "--dest", str(self.folder), "-r", str(wish)]
        lines: list[str] = []
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith(("Collecting", "Processing")):
                    seen = sum(one.startswith(("Collecting", "Processing")) for one in lines)
                    self.report(f"gathering wheels for {self.target.key}: {seen} of {count}")
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
        return None if process.returncode == 0 else (errors or lines or ["pip printed nothing"])[-1].rstrip(".")

    def _verified(self, wanted: list[Pin]) -> dict[str, dict[str, Any]]:
        """File name to size and digest of the wanted wheels, each verified against the lock."""
        hashes = frozenset[str]().union(*(pin.hashes for pin in wanted))
        digests = {path.name: sha256_file(path) for path in sorted(self.folder.glob("*.whl"))}
        good = {name: digest for name, digest in digests.items() if digest in hashes}
        missing = [pin.name for pin in wanted if pin.hashes.isdisjoint(good.values())]
        if missing:
            raise LockstepError(f"{self.folder}: no wheel of {missing[0]} has a digest of the lock; remove that folder and try again")
        return {name: {"size": (self.folder / name).stat().st_size, "sha256": digest} for name, digest in good.items()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
