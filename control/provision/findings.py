"""Provisioning's findings on a host, and whether they suffice. Touches no host."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from control.common.terminal_lines import printable_lines
from control.doctor.checks.across import one_folder
from control.doctor.checks.host import MACHINES, supported
from control.provision.wheels import Target
from trainer.common.errors import LockstepError
from trainer.host import fork_server

PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
GPU_MACHINE = "x86_64"
PYTHON_FACTS = (
    "import sys, importlib.util as u; print('%d.%d.%d' % sys.version_info[:3], sys.maxsize > 2**32, u.find_spec('ensurepip') is not None)"
)
LARGEST = 2**20
"""Characters of a look at a host."""
VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}\.[0-9]{1,3}")
_NUMBER = re.compile("[0-9]{1,12}")
FORMS = {
    **dict.fromkeys(("uid", "root_uid", "root_mb", "cores"), _NUMBER),
    "libc": re.compile(r"[A-Za-z]{1,20} [0-9]{1,3}\.[0-9]{1,3}"),
    "user": re.compile(r"[\w.@\\-]{1,64}\$?"),
    "machine": re.compile(r"\w{1,20}"),
}
"""Values that others are computed from, or that a command to type contains."""
LISTS = {"lacks": "lacks", "foreign": "foreign", "session": "sessions"}
"""Names that the script prints several times, each with the attribute that lists its values."""
OWN = ("venv", "runs", "caches", "locks", "queue", "doctor", "trials", ".lock", ".lockstep-env.lock")
"""Lockstep's entries in worker_root: only these are ever given to the user who trains."""


def look_script(root: str, packages: Iterable[str], pythons: Iterable[str], record: str) -> str:
    """A script for a plain /bin/sh that prints a host's facts as `name=value` lines; it changes nothing.

    It needs no Python on the host: a missing or old Python is one of the findings.
    """
    return f"""
root={shlex.quote(root)}; record={shlex.quote(record)}
sed 's/^/os_/' /etc/os-release 2>/dev/null
echo "machine=$(uname -m)"; echo "bits=$(getconf LONG_BIT)"; echo "libc=$(getconf GNU_LIBC_VERSION)"
echo "user=$(id -un)"; echo "uid=$(id -u)"; echo "cores=$(nproc)"
if command -v apt-get >/dev/null; then echo apt=yes; fi
if [ -d /run/systemd/system ]; then echo systemd=yes; fi
if [ "$(id -u)" = 0 ]; then echo sudo=root
elif ! command -v sudo >/dev/null; then echo sudo=missing
elif sudo -n true 2>/dev/null; then echo sudo=yes; else echo sudo=password; fi
for one in {" ".join(shlex.quote(one) for one in pythons)}; do
  found=$(command -v "$one") && echo "python=$found $("$found" -c {shlex.quote(PYTHON_FACTS)})"
done
for one in {" ".join(shlex.quote(one) for one in packages)}; do
  [ "$(dpkg-query -W -f '${{db:Status-Status}}' "$one" 2>/dev/null)" = installed ] || echo "lacks=$one"
done
at=$root; while [ ! -e "$at" ]; do at=$(dirname "$at"); done
echo "root_mb=$(df -Pk "$at" | awk 'NR == 2 {{ print int($4 / 1024) }}')"
echo "root_uid=$(stat -c %u "$root" 2>/dev/null)"
echo "root_path=$(readlink -m "$root")"; echo "root_on=$(findmnt -n -o FSTYPE,SOURCE -T "$at")"
if [ -d "$root" ] && [ "$(id -u)" = 0 ]; then echo root=own
elif [ -d "$root" ]; then
  [ -O "$root" ] && whose=own || whose=foreign
  for one in {" ".join(OWN)}; do
    [ -e "$root/$one" ] && [ ! -L "$root/$one" ] || continue
    [ -z "$(find "$root/$one" -maxdepth 1 ! -uid "$(id -u)" -print -quit)" ] || {{ whose=foreign; echo "foreign=$root/$one"; }}
  done
  echo "root=$whose"
elif [ -w "$at" ]; then echo root=possible; else echo root=denied; fi
if [ -e "$root/venv/lockstep.stamp" ]; then echo venv=yes; fi
if [ -f "$record" ] && grep -q '^ "installed"' "$record" && ! grep -q '^ "pending"' "$record"; then echo record=whole
elif [ -e "$record" ]; then echo record=pending; fi
if [ -e /etc/lockstep/firewall.nft ]; then echo firewall=yes; fi
if [ -e /etc/systemd/system/lockstep-resume.service ]; then echo resumes=yes; fi
if [ -e /etc/systemd/system/lockstep-dfs.service ] && [ ! -e /var/lib/glusterd/secure-access ]; then echo dfs=open; fi
if command -v tmux >/dev/null; then
  tmux -L lockstep list-sessions -F 'session=#{{session_name}}' 2>/dev/null | grep -v '^session={fork_server.NAME}'
fi
true
"""


@dataclass
class Look:
    """One host, as the script above saw it."""

    values: dict[str, str]
    lacks: list[str] = field(default_factory=list)
    """Required Debian packages that are missing."""
    pythons: list[tuple[str, str, bool]] = field(default_factory=list)
    """Path, version (empty: it does not run), whether 64 bits."""
    venvs: list[str] = field(default_factory=list)
    """Paths of Pythons that can make environments with pip."""
    foreign: list[str] = field(default_factory=list)
    """Our files in worker_root that belong to another user."""
    sudo_reason: str = ""
    """Why sudo rejected the given password; empty if it did not, or was not asked."""
    sessions: list[str] = field(default_factory=list)
    """Live tmux sessions of Lockstep: workers in training."""
    gpus: int = 0
    """GPUs on which a worker there trains, according to the inventory."""

    @property
    def python(self) -> tuple[str, str] | None:
        """Path and version of the first Python that TensorFlow runs on."""
        for path, version, wide in self.pythons:
            if version and wide and supported(version):
                return path, version
        return None

    @property
    def target(self) -> Target | None:
        """The properties that decide which wheels fit this host."""
        if self.python is None or "machine" not in self.values:
            return None
        libc = self.values.get("libc", "").rpartition(".")[2]
        return Target(self.values["machine"], self.python[1], int(libc) if libc.isdecimal() else 0, self.gpus > 0)

    @property
    def users(self) -> list[str]:
        """Uids of those who may train there: the provisioning user; if that is root, also the owner of the worker's directory."""
        uid = self.values.get("uid", "0")
        return [uid] if uid != "0" else sorted({uid, self.values.get("root_uid", uid)})

    def fact(self) -> dict[str, Any]:
        """Facts for later stages."""
        target, python = self.target, self.python
        return {
            **{
                key: self.values.get(key, "") for key in ("machine", "user", "uid", "sudo", "root", "venv", "firewall", "resumes", "record")
            },
            "system": self.values.get("os_PRETTY_NAME", "").strip('"'),
            "lacks": self.lacks,
            "users": self.users,
            "sessions": self.sessions,
            "foreign": self.foreign,
            "makes_venvs": bool(python and python[0] in self.venvs),
            "python": python[0] if python else "",
            "python_version": python[1] if python else "",
            "target": asdict(target) if target else {},
            "wheels": target.key if target else "",
        }

    @classmethod
    def of(cls, output: str) -> "Look":
        """Parse the script's output. A value that the script never prints is left out: the host may be in another's hands."""
        look = cls({})
        for line in printable_lines(output[:LARGEST]).splitlines():
            name, _, value = line.strip().partition("=")
            if name in FORMS and not FORMS[name].fullmatch(value):
                continue
            if name == "python":
                path, version, wide, ensurepip = [*value.split(), "", "", "", ""][:4]
                version = version if VERSION.fullmatch(version) else ""
                look.pythons.append((path, version, wide == "True"))
                look.venvs += [path] if ensurepip == "True" else []
            elif name in LISTS:
                getattr(look, LISTS[name]).append(value)
            elif value:
                look.values[name] = value
        return look

    def needs_root(self, kind: str, firewall: bool) -> bool:
        """Return whether provisioning does anything on the host that needs root, as far as a look shows."""
        root, left = self.values.get("root"), self.values.get("record") == "pending"
        return bool(kind == "glusterfs" or firewall or "firewall" in self.values or self.lacks or left or root in ("denied", "foreign"))

    def removal_refusals(self, host: str, password: bool, kind: str) -> list[str]:
        """Why nothing can be removed from the host now. `password` says whether sudo's was given (`-K`)."""
        needs_root = kind == "glusterfs" or not {"firewall", "resumes", "record"}.isdisjoint(self.values)
        problem = self.sudo_refusal(password) if needs_root else None
        problems = [f"{host}: {problem}"] if problem else []
        if self.sessions:
            problems.append(f"{host}: {', '.join(self.sessions)} is running there; stop it first: ansible-playbook stop.yml")
        return problems

    def refusals(self, host: str, needs_root: bool, password: bool, brick: bool, need_mb: int) -> list[str]:
        """Why the host can't be provisioned: each with the value, the rule and the fix.

        `password` says whether sudo's was given (`-K`), `brick` whether the host is to run services of the distributed file system.
        """
        problems = [self._system(), self._python(), self.sudo_refusal(password) if needs_root else None, self._disk(need_mb)]
        problems += self._services() if brick else []
        return [f"{host}: {problem}" for problem in problems if problem]

    def _system(self) -> str | None:
        machine, name = self.values.get("machine", "unknown"), self.values.get("os_PRETTY_NAME", "an unknown system").strip('"')
        if "apt" not in self.values:
            return f"{name} has no apt; provisioning knows Debian, Ubuntu and Raspberry Pi OS. Prepare it by hand (docs/how-to/cluster.md)"
        if machine not in MACHINES:
            return f"machine {machine}: TensorFlow is built for {' and '.join(MACHINES)} only; use a host of that kind"
        if self.values.get("bits") == "32":
            return f"{name} is a 32-bit system: TensorFlow has no build for it; install the 64-bit one"
        if self.gpus and machine != GPU_MACHINE:
            return f"gpus={self.gpus}: TensorFlow with CUDA is built for {GPU_MACHINE} only, and this is {machine}; take gpus out there"
        return None

    def _python(self) -> str | None:
        if self.python is not None:
            return None
        shown = ", ".join(_shown(*python) for python in self.pythons) or "there is none"
        return (
            f"no Python from 3.11 to 3.13 ({shown}). Use Debian 12, Ubuntu 24.04 or a newer one, install one beside it "
            "(sudo apt-get install python3.11, where there is such a package), or name one: -e python_env_interpreter=PATH"
        )

    def sudo_refusal(self, password: bool) -> str | None:
        """Why the user can't act as root; None if they can."""
        user, sudo = self.values.get("user", "?"), self.values.get("sudo", "missing")
        if sudo in ("yes", "root"):
            return None
        if sudo == "missing":
            return f"there is no sudo, and {user} is not root; install sudo there, or log in as root: -e ansible_user=root"
        if self.sudo_reason:
            return (
                f"sudo does not take the password given for {user} ({self.sudo_reason}); give the right one with -K; a user who may not "
                f"use sudo at all is let in by root: usermod -aG sudo {user}"
            )
        if password:
            return None
        return (
            f"{user} can't use sudo without a password; give it with -K, or allow it there: "
            f"echo '{user} ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/{user}"
        )

    def _disk(self, need_mb: int) -> str | None:
        free = int(self.values.get("root_mb", 0))
        if "venv" in self.values or free >= need_mb:
            return None
        need = f"the Python environment needs {need_mb:,} MB. Free some, or set worker_root to another disk"
        return f"{free:,} MB are free for worker_root; {need}"

    def _services(self) -> list[str]:
        """Why the host can't run the distributed file system's services now."""
        problems = [] if "systemd" in self.values else ["systemd does not run there, and the distributed file system's services need it"]
        if self.sessions and self.values.get("dfs") == "open":
            problems.append(
                f"{', '.join(self.sessions)} is running there, and the shared folder is to be mounted anew, with TLS; stop it first: "
                "ansible-playbook stop.yml"
            )
        return problems


def _shown(path: str, version: str, wide: bool) -> str:
    if not version:
        return f"{path} is no Python"
    return f"{path} is {version}" if wide else f"{path} is {version}, 32-bit"


def venv_refusals(hosts: Mapping[str, Mapping[str, Any]], wheels: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why hosts can't make an environment without uv: Debian's package is missing, and nobody there may install it."""
    return [
        f"{name}: uv is not available for it, and its Python {host['python_version']} makes no environments without Debian's package "
        f"python{host['python_version'].rpartition('.')[0]}-venv, which takes root to install: {host['root_refused']}"
        for name, host in hosts.items()
        if not (wheels[host["wheels"]]["uv"] or host["makes_venvs"]) and host["root_refused"]
    ]


def refuse(problems: list[str], action: str = "provisioned like this") -> None:
    """Fail before the first change, if there is a problem.

    Raises:
        LockstepError: all problems, one per line.
    """
    if problems:
        raise LockstepError("\n".join([f"Nothing can be {action}, and nothing was changed:", *(f"  {problem}" for problem in problems)]))


def shared_refusals(looks: Mapping[str, Look]) -> list[str]:
    """Why hosts can't share one folder: files belong to uids, not to names."""
    numbers: dict[str, list[str]] = {}
    for host, look in looks.items():
        numbers.setdefault(look.values.get("uid", "?"), []).append(host)
    if len(numbers) < 2:
        return []
    shown = "; ".join(f"{number} on {', '.join(hosts)}" for number, hosts in numbers.items())
    return [
        f"the user that trains has different numbers: {shown}. On a shared file system files belong to numbers: "
        "give the user one number everywhere (usermod -u), or log in as one that has"
    ]


def folder_refusals(looks: Mapping[str, Look]) -> list[str]:
    """Why hosts can't keep their workers in `worker_root`: a folder that several of them share holds one Python, not several."""
    places = {}
    for host, look in looks.items():
        fs_type, _, source = look.values.get("root_on", "").partition(" ")
        places[host] = (look.values.get("root_path", ""), fs_type, source.strip())
    problems = []
    for names in one_folder(places):
        path, fs_type, source = places[names[0]]
        problems.append(
            f"{', '.join(names)} would keep their workers in one folder, {path} ({fs_type} of {source}); "
            "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
        )
    return problems
