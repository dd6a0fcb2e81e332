"""Run one of this project's modules on a host by sending only its source.

Ansible packs a module with its own library: 170 KB to every host for every task, and half a second of imports
on a small board. The modules before a training's first step use so little of that library that a stand-in of
a few lines (`modules_runtime.py`) is enough; one of them is 5 KB on the wire. A module's documentation is also the
specification of its arguments.
"""

import json
import re
import secrets
import shlex
import zlib
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from control.common.project import ROOT
from control.remote.answers import believed, documented
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable

PLUGINS = ROOT / "plugins"
RUNTIME = Path(__file__).with_name("modules_runtime.py")
UTILITY = re.compile(r"^from ansible\.module_utils import (\w+)", re.MULTILINE)
DOCUMENTATION = re.compile(r'^(?:DOCUMENTATION|RETURN) = """.*?^"""$', re.MULTILINE | re.DOTALL)
LOADER = "import sys,zlib;exec(zlib.decompress(sys.stdin.buffer.read()))"


def sends(module: str) -> bool:
    """Return whether a module is this project's: all of these are sent this way."""
    return (PLUGINS / "modules" / f"{module}.py").is_file()


def execute(action: Any, module: str, arguments: dict[str, Any], check_mode: bool = False) -> dict[str, Any]:
    """Run a module on the host of an action, which has `task_vars`, and return its answer.

    Raises:
        AnsibleConnectionFailure: the host can't be reached.
        AnsibleActionFail: the host's Python returned no answer, or one that the module never gives.
    """
    mark = f"lean-{secrets.token_hex(8)}:"
    sent = _payload(module, arguments, mark, check_mode)
    command = f"{shlex.quote(python(action))} -c '{LOADER}'"
    completed = action._low_level_execute_command(command, in_data=sent, executable="/bin/sh")
    answers = [line for line in completed["stdout"].splitlines() if line.startswith(mark)]
    if not answers:
        output = printable((completed["stderr"].strip() or completed["stdout"].strip() or "nothing").splitlines()[-1])
        raise AnsibleActionFail(f"{module} got no answer (exit code {completed['rc']}): {output}")
    try:
        return believed(module, answers[-1].removeprefix(mark), None if check_mode else arguments)
    except LockstepError as error:
        raise AnsibleActionFail(str(error)) from None


def require(action: Any, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a module on the action's host, and return its answer.

    Raises:
        AnsibleConnectionFailure: the host can't be reached.
        AnsibleActionFail: the module failed, or the host's Python returned no answer.
    """
    returned = execute(action, module, arguments)
    if returned.get("failed"):
        raise AnsibleActionFail(str(returned["msg"]))
    return returned


def _payload(module: str, arguments: dict[str, Any], mark: str, check_mode: bool) -> bytes:
    """Compressed Python source: the stand-in, the module, its imports from this project, its arguments."""
    source = DOCUMENTATION.sub("", (PLUGINS / "modules" / f"{module}.py").read_text(encoding="utf-8"))
    options = {name: {**option, "description": None} for name, option in documented(module, "DOCUMENTATION")["options"].items()}
    sent: dict[str, Any] = {"name": module, "module": source, "utilities": _utilities(source), "options": options, "params": arguments}
    sent |= {"check_mode": check_mode, "mark": mark}
    # As a string in the source: Python's literals and JSON's differ (true, null).
    call = f"run(json.loads({json.dumps(json.dumps(sent))}))\n"
    return zlib.compress((RUNTIME.read_text(encoding="utf-8") + "\n\n" + call).encode(), 9)


def _utilities(source: str) -> dict[str, str]:
    """Sources of the `module_utils` that a source imports, by name; those that others import come first."""
    needed: dict[str, str] = {}
    for name in UTILITY.findall(source):
        text = (PLUGINS / "module_utils" / f"{name}.py").read_text(encoding="utf-8")
        needed |= {**_utilities(text), name: text}
    return needed


def python(action: Any) -> str:
    """The host's Python: the inventory's, the one Ansible found, or `python3`."""
    configured: str = action.task_vars.get("ansible_python_interpreter") or ""
    discovered: str = action.task_vars.get("ansible_facts", {}).get("discovered_interpreter_python") or ""
    return str(action._templar.template(configured if configured and not configured.startswith("auto") else discovered or "python3"))
