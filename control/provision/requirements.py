"""Packages of the user's own that hosts get beside what training needs: locked here for a kind of host, without changing that."""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from control.provision.wheels import Pin, Target, chosen, pins
from trainer.common.errors import ConfigError
from trainer.common.files import write_text

GLIBCS = (17, 28, *range(31, 41))
"""Minor versions of the C library that uv resolves for."""


def lock(file: Path, base: Iterable[Pin], target: Target, kept: Path) -> list[Pin]:
    """Packages of a requirements file beyond a lock, with their dependencies, as exact versions with hashes of wheels.

    The answer is kept in a folder, so that the same file means the same versions until it changes.

    Raises:
        ConfigError: there is no such file, or no versions that fit it, the lock and the host.
    """
    if not file.is_file():
        raise ConfigError(f"requirements={file}: no such file: {file.absolute()}")
    needed = chosen(base, target)
    fixed = "".join(f"{pin.name}=={pin.version}\n" for pin in needed)
    asked = "\0".join([file.read_text(encoding="utf-8"), fixed, target.key, target.python, _platform(target)])
    locked = kept / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.txt"
    if not locked.is_file():
        write_text(locked, _resolved(file, fixed, target))
    known = {pin.name for pin in needed}
    return [pin for pin in pins(locked.read_text(encoding="utf-8")) if pin.name not in known]


def _resolved(file: Path, fixed: str, target: Target) -> str:
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "lock.txt")
        constraints.write_text(fixed, encoding="utf-8")
        argv = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
        argv += ["--only-binary", ":all:", "--python-version", target.python, "--python-platform", _platform(target)]
        # Nothing is built, so uv needs no Python of the host's version: without this it would download one.
        argv += ["--python", sys.executable]
        wheels = os.environ.get("WHEELS")
        argv += ["--no-index", "--find-links", str(Path(wheels).resolve())] if wheels else []
        done = subprocess.run([*argv, "--constraint", str(constraints), str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"requirements={file}: no versions fit {target.machine}, Python {target.short} and what training needs "
            f"(requirements/{target.lock}.txt): {' '.join(done.stderr.split())}"
        )
    return done.stdout


def _platform(target: Target) -> str:
    """A host as uv names it."""
    return f"{target.machine}-manylinux_2_{max((one for one in GLIBCS if one <= target.glibc), default=GLIBCS[0])}"


def missing_here(wanted: Iterable[Pin]) -> list[str]:
    """Names of packages that this Python lacks: models and data are tried on the control node, too."""
    here = {canonicalize_name(distribution.name) for distribution in metadata.distributions()}
    return sorted(pin.name for pin in wanted if pin.name not in here)
