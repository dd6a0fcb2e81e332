"""Ansible module: a host's virtual environment for training, made from a folder of wheels."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import zipfile

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: python_env
short_description: A Python environment from wheels, without a package index
description:
  - Installs every wheel in the folder's C(requirements.txt), with its hashes, using uv if the folder has it, otherwise pip.
  - The folder may be one that others can write. Nothing of it is used unless it is what the control node published (O(sums)).
  - A stamp written last records the environment's source; one that is incomplete, or from another source, is made again.
  - A non-empty folder that this module did not make is neither replaced nor removed.
options:
  path: {type: path, required: true, description: The environment's folder.}
  wheels: {type: path, description: Folder of the wheels; needed for C(present).}
  digest: {type: str, description: "Digest over the wheels, as in the folder's name; needed for C(present)."}
  sums: {type: dict, description: "SHA-256 of each file in that folder, by name, as the control node knows them; needed for C(present)."}
  python: {type: path, default: /usr/bin/python3, description: Python that makes the environment.}
  need_mb: {type: int, default: 2800, description: Free megabytes that it needs.}
  modules:
    type: list
    elements: str
    default: [tensorflow, keras, numpy, PIL, yaml]
    description: Modules that must import before the environment counts as complete.
  others: {type: list, elements: path, default: [], description: Files and folders beside the environment that C(absent) removes.}
  state: {type: str, choices: [present, absent], default: present, description: Whether the environment should exist.}
"""

RETURN = """
seconds: {type: float, returned: changed, description: How long it took.}
tool: {type: str, returned: changed, description: "What installed the wheels, C(uv) or C(pip)."}
"""

LOCK = ".lockstep-env.lock"
REQUIREMENTS = "requirements.txt"
SCRATCH = ".lockstep-install-"
WAIT_S = 600


def main():
    module = AnsibleModule(required_if=[("state", "present", ["wheels", "digest", "sums"])])
    {"present": _present, "absent": _absent}[module.params["state"]](module)


def _present(module):
    """Make the environment, unless it is there."""
    wanted = {"digest": module.params["digest"], "python": _version(module, module.params["python"])}
    if _stamp(module) == wanted and _runs(module):
        module.exit_json()
    _refuse_foreign(module)
    if module.check_mode:
        module.exit_json(changed=True)
    begun, path = time.monotonic(), module.params["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with _alone(module):
        if _stamp(module) == wanted and _runs(module):
            module.exit_json()
        _refuse_foreign(module)
        _refuse_while_used(module)
        _clear(module)
        _check_disk(module)
        _mark(module)
        tool = _install(module)
        _try_imports(module)
        _write_stamp(module, wanted)
    seconds = round(time.monotonic() - begun, 1)
    shown = f"{host.name()}: Python environment made in {seconds:.0f} s ({tool}): {path}"
    module.exit_json(changed=True, seconds=seconds, tool=tool, show=shown)


@contextlib.contextmanager
def _alone(module):
    """Wait until no other call works on this environment: a call whose connection broke may still be running."""
    with open(os.path.join(os.path.dirname(module.params["path"]), LOCK), "w", encoding="utf-8") as stream:
        deadline = time.monotonic() + WAIT_S
        while not _taken(stream):
            if time.monotonic() > deadline:
                module.fail_json(
                    msg=f"{host.name()}: another provisioning has been making {module.params['path']} for {WAIT_S} s; try again later"
                )
            time.sleep(1)
        yield


def _taken(stream):
    """Take the lock if it is free; the kernel releases it when a process dies."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(module):
    """Remove what an earlier call left: a half-made or outdated environment, and unpacked wheels."""
    if os.path.lexists(module.params["path"]):
        _mark(module)
    for path in [module.params["path"], _marker(module), *_leftovers(module)]:
        _remove(path)


def _marker(module):
    """A file beside the environment that marks it as ours: created before its first file, removed after its last."""
    folder, name = os.path.split(module.params["path"])
    return os.path.join(folder, f".lockstep-env.{name}.made")


def _mark(module):
    with open(_marker(module), "w", encoding="utf-8") as stream:
        os.fsync(stream.fileno())


def _refuse_foreign(module):
    """Refuse to replace or remove what no call of ours made."""
    path = module.params["path"]
    ours = os.path.lexists(_marker(module)) or os.path.lexists(_stamp_path(module))
    bare = os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
    if os.path.lexists(path) and not ours and not bare:
        module.fail_json(
            msg=f"{host.name()}: python_env_path={path} exists, and Lockstep did not make it; its contents would be lost. "
            "Move it away, or set python_env_path to a folder of its own"
        )


def _leftovers(module):
    """Folders of killed calls."""
    return glob.glob(os.path.join(glob.escape(os.path.dirname(module.params["path"])), f"{SCRATCH}*"))


def _install(module):
    """Make the environment with uv or pip; returns which."""
    wheels = module.params["wheels"]
    # Next to the environment: files are moved there instead of copied from another disk.
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=os.path.dirname(module.params["path"])) as scratch:
        os.environ.update({"UV_CACHE_DIR": f"{scratch}/cache", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1", "TMPDIR": scratch})
        os.environ.update({"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"})
        wish = ["--no-index", "--require-hashes", "-r", _compared(module, REQUIREMENTS, scratch), "--find-links"]
        uv = _unpacked_uv(module, scratch)
        if uv:
            # uv compares a wheel with its hash while it unpacks it.
            _with_uv(module, uv, [*wish, wheels])
            return "uv"
        for name in sorted(module.params["sums"]):
            if name.endswith(".whl"):
                # pip reads a wheel twice, first to compare it.
                _compared(module, name, scratch)
        _with_pip(module, [*wish, scratch])
        return "pip"


def _compared(module, name, folder):
    """Path of a published file's copy on this host's disk, made while it is compared, so that later changes have no effect."""
    source, own, state = os.path.join(module.params["wheels"], name), os.path.join(folder, name), hashlib.sha256()
    try:
        with open(source, "rb") as stream, open(own, "wb") as copy:
            for block in iter(lambda: stream.read(1 << 20), b""):
                state.update(block)
                copy.write(block)
    except FileNotFoundError:
        module.fail_json(msg=f"{host.name()}: {source} is missing; is dfs_path mounted? Run provision.yml again")
    digest, published = state.hexdigest(), module.params["sums"].get(name, "")
    if digest != published:
        module.fail_json(
            msg=f"{host.name()}: {source} has SHA-256 {digest[:16]}..., and {published[:16] or 'no such file'}... was published; it is not "
            f"used: somebody else wrote it, or a disk is damaged. {_again(module)}"
        )
    return own


def _again(module):
    """How wheels get there as published."""
    return f"Fix: see who can write that folder, rm -r {shlex.quote(module.params['wheels'])}, then provision.yml again, which sends it"


def _with_uv(module, uv, source):
    """Faster than pip, and independent of Debian's python3-venv."""
    path = module.params["path"]
    _run(module, uv, "venv", "--quiet", "--offline", "--no-project", "--python", module.params["python"], path)
    _run(module, uv, "pip", "install", "--quiet", "--offline", "--link-mode", "hardlink", "--python", f"{path}/bin/python", *source)


def _with_pip(module, source):
    """Needs Debian's python3-venv. Compiles only what is imported: compiling all takes minutes on a small board."""
    path = module.params["path"]
    _run(module, module.params["python"], "-m", "venv", path)
    _run(module, f"{path}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", *source)


def _unpacked_uv(module, scratch):
    """Path of uv, extracted from its wheel; None if none runs here."""
    for name in sorted(module.params["sums"]):
        if not (name.startswith("uv-") and name.endswith(".whl")):
            continue
        with zipfile.ZipFile(_compared(module, name, scratch)) as archive:
            for inside in archive.namelist():
                if inside.endswith("/scripts/uv"):
                    path = archive.extract(inside, scratch)
                    os.chmod(path, 0o755)  # noqa: S103 - a program
                    return path if _starts(path) else None
    return None


def _starts(program):
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _try_imports(module):
    """Import what training needs: shows that it works here, and compiles it for the first training."""
    statements = "; ".join(f"import {name}" for name in module.params["modules"])
    # Keras would otherwise write a folder into the user's home.
    with tempfile.TemporaryDirectory() as home:
        os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": home})
        code, _, error = module.run_command([f"{module.params['path']}/bin/python", "-c", statements])
    if code != 0:
        messages = error.strip().splitlines() or [f"exit code {code}"]
        module.fail_json(
            msg=f"{host.name()}: the new environment does not work: {messages[-1]}; is this processor too old for TensorFlow's build?"
        )


def _refuse_while_used(module):
    program = os.path.join(module.params["path"], "bin", "")
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if host.words(entry)[0].startswith(program):
            module.fail_json(
                msg=f"{host.name()}: process {entry} runs with {module.params['path']}, which is to be replaced or removed; "
                "wait for the run to end or stop it (ansible-playbook status.yml, stop.yml), then try again"
            )


def _check_disk(module):
    """Refuse if the disk is too small, before anything is written."""
    folder = host.existing(os.path.dirname(module.params["path"]))
    free = shutil.disk_usage(folder).free // 2**20
    if free < module.params["need_mb"]:
        module.fail_json(
            msg=f"{host.name()}: {free:,} MB are free under {folder}; the Python environment needs {module.params['need_mb']:,} MB. "
            "Free some, or set worker_root to another disk"
        )


def _version(module, python):
    code, out, error = module.run_command([python, "-c", "import sys; print(sys.version)"])
    if code != 0:
        module.fail_json(msg=f"{host.name()}: {python} does not run: {error.strip()[-300:]}; set python_env_interpreter")
    return " ".join(out.split())


def _runs(module):
    """Return whether the environment's Python exists and runs."""
    python = os.path.join(module.params["path"], "bin", "python")
    return os.path.exists(python) and module.run_command([python, "-c", ""])[0] == 0


def _stamp(module):
    """Record of the environment's inputs; None if the environment was never finished."""
    return files.parsed(_stamp_path(module))


def _stamp_path(module):
    return os.path.join(module.params["path"], "lockstep.stamp")


def _write_stamp(module, wanted):
    """Write the stamp; the installed files reach the disk first."""
    os.sync()
    files.replace(_stamp_path(module), json.dumps(wanted))


def _absent(module):
    """Remove the environment and what is beside it; also the folder, if it is then empty."""
    _refuse_foreign(module)
    folder = os.path.dirname(module.params["path"])
    mine = [module.params["path"], *module.params["others"], os.path.join(folder, LOCK), _marker(module), *_leftovers(module)]
    paths = [path for path in mine if os.path.lexists(path)]
    # worker_root stays if only root may remove it.
    may = os.access(os.path.dirname(folder), os.W_OK)
    lonely = os.path.isdir(folder) and may and set(os.listdir(folder)) <= {os.path.basename(path) for path in paths}
    if (paths or lonely) and not module.check_mode:
        _refuse_while_used(module)
        if os.path.lexists(module.params["path"]):
            _mark(module)
        for path in [*paths, _marker(module)]:
            _remove(path)
        if lonely:
            os.rmdir(folder)
    module.exit_json(changed=bool(paths or lonely))


def _remove(path):
    """Remove a file or folder that may not be there."""
    if os.path.isdir(path) and not os.path.islink(path):
        # The stamp first: the rest of an interrupted removal must not pass for complete.
        for stamp_file in glob.glob(os.path.join(glob.escape(path), "lockstep.stamp")):
            os.unlink(stamp_file)
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _run(module, *argv):
    code, out, error = module.run_command(list(argv))
    if code != 0:
        messages = " ".join([line.strip() for line in (error or out).splitlines() if line.strip()][-6:]) or "no output"
        fix = f". {_again(module)}" if "hash" in messages.lower() else ""
        module.fail_json(msg=f"{host.name()}: `{' '.join(argv[:4])} ...` ended with exit code {code}: {messages}{fix}")


if __name__ == "__main__":
    main()
