"""Ansible module: a host's virtual environment for training, made from a folder of wheels."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shlex
import shutil
import signal
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
STAMP = "lockstep.stamp"
"""Record of an environment's inputs, written last."""
WAITING = "lockstep-preload-"
"""Beginning of an argument of processes from which workers are forked: `NAME` of `trainer.host.fork_server`."""
SCRATCH = ".lockstep-install-"
WAIT_S = 600


def main():
    _Environment(AnsibleModule(required_if=[("state", "present", ["wheels", "digest", "sums"])])).act()


class _Environment(host.Change):
    """The environment on this host, and what lies beside it."""

    def __init__(self, module):
        super().__init__(module)
        self.path, self.wheels = self.params["path"], self.params["wheels"]
        self.folder, name = os.path.split(self.path)
        self.python, self.stamp = os.path.join(self.path, "bin", "python"), os.path.join(self.path, STAMP)
        self.marker = os.path.join(self.folder, f".lockstep-env.{name}.made")
        """Marks the environment as ours: created before its first file, removed after its last."""

    def present(self):
        """Make the environment, unless it is there."""
        python = self.params["python"]
        code, out, error = self.module.run_command([python, "-c", "import sys; print(sys.version)"])
        if code != 0:
            self.fail(f"{python} does not run: {error.strip()[-300:]}; set python_env_interpreter")
        wanted = {"digest": self.params["digest"], "python": " ".join(out.split())}
        self._check_there(wanted)
        if self.module.check_mode:
            self.module.exit_json(changed=True)
        begun = time.monotonic()
        os.makedirs(self.folder, exist_ok=True)
        with self._alone():
            self._check_there(wanted)
            self._refuse_while_used()
            # What an earlier call left: a half-made or outdated environment, and unpacked wheels.
            self._remove([self.path, *self._leftovers()])
            self._check_disk()
            self._mark()
            tool = self._install()
            self._try_imports()
            self._write_stamp(wanted)
        seconds = round(time.monotonic() - begun, 1)
        shown = f"{host.name()}: Python environment made in {seconds:.0f} s ({tool}): {self.path}"
        self.module.exit_json(changed=True, seconds=seconds, tool=tool, show=shown)

    def absent(self):
        """Remove the environment and what is beside it; also the folder, if it is then empty."""
        self._refuse_foreign()
        mine = [self.path, *self.params["others"], os.path.join(self.folder, LOCK), self.marker, *self._leftovers()]
        paths = [path for path in mine if os.path.lexists(path)]
        # worker_root stays if only root may remove it.
        may = os.access(os.path.dirname(self.folder), os.W_OK)
        lonely = os.path.isdir(self.folder) and may and set(os.listdir(self.folder)) <= {os.path.basename(path) for path in paths}
        if (paths or lonely) and not self.module.check_mode:
            self._refuse_while_used()
            self._remove(paths)
            if lonely:
                os.rmdir(self.folder)
        self.module.exit_json(changed=bool(paths or lonely))

    def _check_there(self, wanted):
        """End if the environment is there as wanted; refuse to replace one that no call of ours made."""
        if self._made(wanted):
            self.module.exit_json()
        self._refuse_foreign()

    def _made(self, wanted):
        """Return whether the environment is complete, of the wanted inputs, and its Python runs."""
        there = files.parsed(self.stamp) == wanted and os.path.exists(self.python)
        return there and self.module.run_command([self.python, "-c", ""])[0] == 0

    @contextlib.contextmanager
    def _alone(self):
        """Wait until no other call works on this environment: a call whose connection broke may still be running."""
        with open(os.path.join(self.folder, LOCK), "w", encoding="utf-8") as stream:
            deadline = time.monotonic() + WAIT_S
            while not _taken(stream):
                if time.monotonic() > deadline:
                    self.fail(f"another provisioning has been making {self.path} for {WAIT_S} s; try again later")
                time.sleep(1)
            yield

    def _mark(self):
        with open(self.marker, "w", encoding="utf-8") as stream:
            os.fsync(stream.fileno())

    def _remove(self, paths):
        """Remove files and folders, and then the marker: what an interrupted call leaves is still known as ours."""
        if os.path.lexists(self.path):
            self._mark()
        for path in [*paths, self.marker]:
            _remove_path(path)

    def _leftovers(self):
        """Folders of killed calls."""
        return glob.glob(os.path.join(glob.escape(self.folder), f"{SCRATCH}*"))

    def _refuse_foreign(self):
        """Refuse to replace or remove what no call of ours made."""
        ours = os.path.lexists(self.marker) or os.path.lexists(self.stamp)
        bare = os.path.isdir(self.path) and not os.path.islink(self.path) and not os.listdir(self.path)
        if os.path.lexists(self.path) and not ours and not bare:
            self.fail(
                f"python_env_path={self.path} exists, and Lockstep did not make it; its contents would be lost. "
                "Move it away, or set python_env_path to a folder of its own"
            )

    def _refuse_while_used(self):
        """Fail if a process runs with the environment; one that waits for a launch, and has no worker, is ended."""
        program = os.path.join(self.path, "bin", "")
        commands = {entry: host.words(entry) for entry in filter(str.isdigit, os.listdir("/proc"))}
        running = {entry: words for entry, words in commands.items() if words[0].startswith(program)}
        for entry, words in running.items():
            waits = words[3:4] and words[3].startswith(WAITING) and host.parent(entry) not in running
            if waits and entry not in map(host.parent, running):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry), signal.SIGKILL)
            else:
                self.fail(
                    f"process {entry} runs with {self.path}, which is to be replaced or removed; "
                    "wait for the run to end or stop it (ansible-playbook status.yml, stop.yml), then try again"
                )

    def _check_disk(self):
        """Refuse if the disk is too small, before anything is written."""
        folder = host.existing(self.folder)
        free, needed = shutil.disk_usage(folder).free // 2**20, self.params["need_mb"]
        if free < needed:
            self.fail(
                f"{free:,} MB are free under {folder}; the Python environment needs {needed:,} MB. "
                "Free some, or set worker_root to another disk"
            )

    def _install(self):
        """Make the environment with uv or pip; returns which."""
        # Next to the environment: files are moved there instead of copied from another disk.
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch:
            os.environ.update({"UV_CACHE_DIR": f"{scratch}/cache", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1", "TMPDIR": scratch})
            os.environ.update({"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"})
            wish = ["--no-index", "--require-hashes", "-r", self._compared(REQUIREMENTS, scratch), "--find-links"]
            python, uv = self.params["python"], self._unpacked_uv(scratch)
            if uv:
                # Faster than pip, and independent of Debian's python3-venv. It compares a wheel with its hash while it unpacks it.
                self._run(uv, "venv", "--quiet", "--offline", "--no-project", "--python", python, self.path)
                options = ["--quiet", "--offline", "--link-mode", "hardlink", "--python", self.python]
                self._run(uv, "pip", "install", *options, *wish, self.wheels)
                return "uv"
            for name in sorted(self.params["sums"]):
                if name.endswith(".whl"):
                    # pip reads a wheel twice, first to compare it.
                    self._compared(name, scratch)
            # Needs Debian's python3-venv. Compiles only what is imported: compiling all takes minutes on a small board.
            self._run(python, "-m", "venv", self.path)
            self._run(self.python, "-m", "pip", "install", "--quiet", "--no-compile", *wish, scratch)
            return "pip"

    def _compared(self, name, folder):
        """Path of a published file's copy on this host's disk, made while it is compared, so that later changes have no effect."""
        source, own, state = os.path.join(self.wheels, name), os.path.join(folder, name), hashlib.sha256()
        try:
            with open(source, "rb") as stream, open(own, "wb") as copy:
                for block in iter(lambda: stream.read(1 << 20), b""):
                    state.update(block)
                    copy.write(block)
        except FileNotFoundError:
            self.fail(f"{source} is missing; is dfs_path mounted? Run provision.yml again")
        digest, published = state.hexdigest(), self.params["sums"].get(name, "")
        if digest != published:
            self.fail(
                f"{source} has SHA-256 {digest[:16]}..., and {published[:16] or 'no such file'}... was published; it is not "
                f"used: somebody else wrote it, or a disk is damaged. {self._again()}"
            )
        return own

    def _again(self):
        """How wheels get there as published."""
        return f"Fix: see who can write that folder, rm -r {shlex.quote(self.wheels)}, then provision.yml again, which sends it"

    def _unpacked_uv(self, scratch):
        """Path of uv, extracted from its wheel; None if none runs here."""
        for name in sorted(self.params["sums"]):
            if not (name.startswith("uv-") and name.endswith(".whl")):
                continue
            with zipfile.ZipFile(self._compared(name, scratch)) as archive:
                for inside in archive.namelist():
                    if inside.endswith("/scripts/uv"):
                        path = archive.extract(inside, scratch)
                        os.chmod(path, 0o755)  # noqa: S103 - a program
                        return path if _starts(path) else None
        return None

    def _try_imports(self):
        """Import what training needs: shows that it works here, and compiles it for the first training."""
        statements = "; ".join(f"import {name}" for name in self.params["modules"])
        # Keras would otherwise write a folder into the user's home.
        with tempfile.TemporaryDirectory() as home:
            os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": home})
            code, _, error = self.module.run_command([self.python, "-c", statements])
        if code != 0:
            messages = error.strip().splitlines() or [f"exit code {code}"]
            self.fail(f"the new environment does not work: {messages[-1]}; is this processor too old for TensorFlow's build?")

    def _write_stamp(self, wanted):
        """Write the stamp; the installed files reach the disk first."""
        os.sync()
        files.replace(self.stamp, json.dumps(wanted))

    def _run(self, *argv):
        code, out, error = self.module.run_command(list(argv))
        if code != 0:
            messages = " ".join([line.strip() for line in (error or out).splitlines() if line.strip()][-6:]) or "no output"
            fix = f". {self._again()}" if "hash" in messages.lower() else ""
            self.fail(f"`{' '.join(argv[:4])} ...` ended with exit code {code}: {messages}{fix}")


def _taken(stream):
    """Take the lock if it is free; the kernel releases it when a process dies."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _starts(program):
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _remove_path(path):
    """Remove a file or folder that may not be there."""
    if os.path.isdir(path) and not os.path.islink(path):
        # The stamp first: the rest of an interrupted removal must not pass for complete.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, STAMP))
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


if __name__ == "__main__":
    main()
