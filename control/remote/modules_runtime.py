"""Replaces `ansible.module_utils.basic` for lean modules on a host. Standard library only.

This file is sent ahead of the module's source; `control/remote/modules.py` says why.
"""

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Optional

BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
CASTS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "path": lambda value: os.path.expanduser(os.path.expandvars(str(value))),
    "bool": lambda value: value if isinstance(value, bool) else BOOLEANS[str(value).lower()],
}


class AnsibleModule:
    """The subset of Ansible's class that this project's lean modules use; each has the options that it documents, and a check mode."""

    given: ClassVar[dict[str, Any]] = {}
    mark = ""

    def __init__(self, required_if: Sequence[Any] = ()):
        options: dict[str, Any] = self.given["options"]
        self.check_mode = bool(self.given["check_mode"])
        self.params = {name: self._value(name, option) for name, option in options.items()}
        unknown = sorted(set(self.given["params"]) - set(options))
        if unknown:
            self.fail_json(msg=f"unknown parameter {unknown[0]}; known are: {', '.join(sorted(options))}")
        for name, value, needed in required_if:
            missing = [other for other in needed if self.params[other] is None]
            if self.params[name] == value and missing:
                self.fail_json(msg=f"{name}={value} needs {', '.join(missing)}")

    def _value(self, name: str, option: dict[str, Any]) -> Any:
        value = self.given["params"].get(name, option.get("default"))
        if value is None:
            if option.get("required"):
                self.fail_json(msg=f"parameter {name} is missing")
            return None
        kind = option.get("type", "str")
        try:
            value = CASTS[kind](value) if kind in CASTS else value
        except (KeyError, ValueError):
            self.fail_json(msg=f"{name}={value}: expected {kind}")
        if "choices" in option and value not in option["choices"]:
            self.fail_json(msg=f"{name}={value}: expected one of {', '.join(map(str, option['choices']))}")
        if "elements" in option:
            value = [CASTS.get(option["elements"], lambda item: item)(item) for item in value]
        return value

    def exit_json(self, **returned: Any) -> None:
        """Print the result and exit."""
        self._print({"changed": False, **returned})

    def fail_json(self, msg: str, **returned: Any) -> None:
        """Print the failure and exit."""
        self._print({"failed": True, "msg": msg, **returned})

    def _print(self, returned: dict[str, Any]) -> None:
        sys.stdout.write(f"\n{self.mark}{json.dumps(returned)}\n")
        sys.stdout.flush()
        sys.exit(0)

    @staticmethod
    def get_bin_path(name: str) -> Optional[str]:
        """Path of a program, also in system folders; None if missing."""
        return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"]))

    @staticmethod
    def run_command(argv: list[str]) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        completed = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return completed.returncode, completed.stdout.decode(errors="replace"), completed.stderr.decode(errors="replace")


def run(sent: dict[str, Any]) -> None:
    """Run the module that was sent.

    Args:
        sent: `params`, `options` (as documented), `check_mode`, `mark`; `utilities` (name to source of the modules in
            `ansible.module_utils`); `module` (source).
    """
    AnsibleModule.given, AnsibleModule.mark = sent, sent["mark"]
    packages = {name: types.ModuleType(name) for name in ("ansible", "ansible.module_utils", "ansible.module_utils.basic")}
    sys.modules.update(packages)
    setattr(packages["ansible.module_utils.basic"], "AnsibleModule", AnsibleModule)
    for name, source in sent["utilities"].items():
        loaded = types.ModuleType(name)
        exec(compile(source, f"{name}.py", "exec"), loaded.__dict__)
        sys.modules[f"ansible.module_utils.{name}"] = loaded
        setattr(packages["ansible.module_utils"], name, loaded)
    exec(compile(sent["module"], f"{sent['name']}.py", "exec"), {"__name__": "__main__"})
