"""Set up `.venv` from the locked requirements. Standard library only: this runs on a bare machine.

    python3 requirements/install.py control      # what training needs
    python3 requirements/install.py dev          # and what tests and linters need
    python3 requirements/install.py wheels DIR   # fill a folder for offline set-up (WHEELS=DIR)

REQUIREMENTS=FILE adds a requirements file of your own to the first two.

Uses uv if it is available or can be installed, otherwise pip. Does nothing if everything is in place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCKS = {"control": ["node", "control"], "dev": ["node", "control", "dev"]}
UV = "uv==0.13.8"
SUPPORTED = ((3, 11), (3, 13))


LOCKSTEP = """# Lockstep's own module, for a script that plain `python` runs; a worker has the folder of that file on its path.
import importlib.util
import sys

_spec = importlib.util.spec_from_file_location("lockstep", {path!r})
sys.modules["lockstep"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["lockstep"])
"""
"""Not its folder: that has a `sitecustomize` for workers."""


def main() -> int:
    """Run one of the commands above."""
    group = sys.argv[1]
    problem = unsupported()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    try:
        if group == "wheels":
            return fill(Path(sys.argv[2]))
        return install(group) or add(os.environ.get("REQUIREMENTS", ""))
    except subprocess.CalledProcessError as error:
        command = " ".join(str(word) for word in error.cmd[:4])
        print(f"error: set-up failed: `{command} ...` ended with exit code {error.returncode} (its output is above)", file=sys.stderr)
        return 1


def unsupported() -> str | None:
    """Requirement that this machine misses, and the fix, in one line; None if it misses none."""
    version, machine = sys.version_info[:2], platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        return (
            f"{platform.system()} on {machine} is not supported: TensorFlow has no build for it; "
            "use 64-bit Linux (Debian 12, Ubuntu, Raspberry Pi OS) on x86_64 or aarch64"
        )
    if sys.maxsize <= 2**32:
        return "a 32-bit Python is not supported: TensorFlow has no build for it; use a 64-bit Python on 64-bit Linux"
    if not SUPPORTED[0] <= version <= SUPPORTED[1]:
        return f"Python {platform.python_version()} is not supported; use 3.11 to 3.13, for example: make setup PYTHON=python3.12"
    if shutil.which("tmux") is None:
        return "tmux is missing; install it: sudo apt-get install tmux"
    return None


def install(group: str) -> int:
    """Bring `.venv` to the locked state of a group."""
    wanted = state(group)
    if any(
        stamp(name).is_file() and stamp(name).read_text() == state(name)
        for name in LOCKS
        if LOCKS[name][: len(LOCKS[group])] == LOCKS[group]
    ):
        return 0
    print(f"setting up .venv ({group}) ...", flush=True)
    uv = find_uv()
    lock = ROOT / "requirements" / f"{group}.txt"
    if uv is None:
        run(pip(), "install", "--quiet", "--no-compile", "--require-hashes", *offline(), "-r", lock)
    else:
        run([uv], "pip", "install", "--quiet", "--python", PYTHON, "--require-hashes", *offline(), "-r", lock)
    packages = next((VENV / "lib").glob("python3.*/site-packages"))
    compile_packages(packages)
    provide_own()
    stamp(group).write_text(wanted)
    return 0


def provide_own() -> None:
    """Let this environment's Python find the project, and its scripts `import lockstep` without a path."""
    packages = next((VENV / "lib").glob("python3.*/site-packages"))
    (packages / "lockstep.pth").write_text(f"{ROOT}\n")
    (packages / "lockstep.py").write_text(LOCKSTEP.format(path=str(ROOT / "trainer" / "keras_fit" / "site" / "lockstep.py")))


def compile_packages(packages: Path) -> None:
    """Compile all packages on all cores, except Ansible's collections: they are half of all files, and hardly ever imported."""
    # Some packages contain templates that are not valid Python.
    subprocess.run([PYTHON, "-m", "compileall", "-q", "-q", "-j", "0", "-x", "/ansible_collections/", packages], check=False)


def add(file: str) -> int:
    """Install a requirements file of the user's own into `.venv`, without changing the locked packages."""
    if not file:
        return 0
    if not Path(file).is_file():
        print(f"error: REQUIREMENTS={file}: no such file: {Path(file).absolute()}", file=sys.stderr)
        return 1
    uv = find_uv()
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder, "lock.txt")
        locks = [(ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8") for name in LOCKS["control"]]
        fixed.write_text("".join(line for lock in locks for line in pinned(lock)), encoding="utf-8")
        command = pip() if uv is None else [uv, "pip"]
        python = [] if uv is None else ["--python", PYTHON, "--compile-bytecode"]
        run(command, "install", "--quiet", *python, *offline(), "--constraint", fixed, "-r", file)
    return 0


def pinned(lock: str) -> list[str]:
    """The versions of a lock, with their conditions but without hashes, as constraints."""
    return [f"{line.rstrip(chr(92) + ' ')}\n" for line in lock.splitlines() if line[:1].isalnum()]


def state(group: str) -> str:
    """Digest of what `.venv` is made from: locks, Python, location, our own module."""
    digest = hashlib.sha256(f"{sys.version}\0{ROOT}\0{LOCKSTEP}\0".encode())
    for name in LOCKS[group]:
        digest.update((ROOT / "requirements" / f"{name}.txt").read_bytes())
    return digest.hexdigest()


def stamp(group: str) -> Path:
    """File that records what `.venv` holds."""
    return VENV / f"lockstep-{group}.stamp"


def offline() -> list[str]:
    """Options that take wheels only from the folder `WHEELS`."""
    wheels = os.environ.get("WHEELS")
    return ["--no-index", "--find-links", str(Path(wheels).resolve())] if wheels else []


def find_uv() -> str | None:
    """Uv from PATH, or installed into a fresh `.venv`; None when neither works. `.venv` exists afterwards."""
    uv = shutil.which("uv")
    if uv is not None:
        if not usable():
            shutil.rmtree(VENV, ignore_errors=True)
            run([uv], "venv", "--quiet", "--python", sys.executable, VENV)
        return uv
    if not usable():
        make_venv()
    if not (VENV / "bin" / "uv").is_file() and subprocess.run([*pip(), "install", "--quiet", *offline(), UV], check=False).returncode != 0:
        print("uv can't be installed; going on with pip, which takes longer", file=sys.stderr)
        return None
    return str(VENV / "bin" / "uv")


def usable() -> bool:
    """Return whether `.venv` has this same Python and was made at this same path (its scripts contain it)."""
    if not PYTHON.exists() or str(VENV) not in (VENV / "bin" / "activate").read_text(encoding="utf-8"):
        return False
    done = subprocess.run([PYTHON, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == sys.version.strip()


def make_venv() -> None:
    """Make a virtual environment, also where Debian has split `venv` off, then without pip."""
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        run([sys.executable], "-m", "venv", "--without-pip", VENV)


def pip() -> list[str]:
    """The command that runs pip for `.venv`."""
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    return [str(PYTHON), f"{debian_pip()}/pip", "--disable-pip-version-check"]


def debian_pip() -> Path:
    """Pip as a wheel from Debian's package, downloaded and unpacked without root."""
    wheels = sorted(Path("/usr/share/python-wheels").glob("pip-*.whl")) or sorted((VENV / "pip").rglob("pip-*.whl"))
    if wheels:
        return wheels[-1]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            subprocess.run(["apt-get", "download", "python3-pip-whl"], cwd=scratch, check=True, capture_output=True)
            package = next(Path(scratch).glob("*.deb"))
            subprocess.run(["dpkg", "-x", package, VENV / "pip"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError, StopIteration):
            sys.exit("error: Python's venv module is missing and can't be fetched; install it: sudo apt-get install python3-venv")
    return sorted((VENV / "pip").rglob("pip-*.whl"))[-1]


def fill(folder: Path) -> int:
    """Download all wheels of the locks into a folder."""
    find_uv()
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        subprocess.run([PYTHON, "-m", "ensurepip"], check=False, capture_output=True)
    run(pip(), "download", "--quiet", "--require-hashes", "--dest", folder, "-r", ROOT / "requirements" / "dev.txt")
    run(pip(), "download", "--quiet", "--dest", folder, UV)
    print(f"filled {folder}; set up from it with: make setup WHEELS={folder}")
    return 0


def run(command: list[str], *arguments: object) -> None:
    """Run a command; a failure ends the set-up."""
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": os.environ.get("UV_LINK_MODE", "copy")}
    subprocess.run([*command, *(str(argument) for argument in arguments)], check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
