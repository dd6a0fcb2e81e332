"""Commands in a process that has loaded Ansible and TensorFlow already, up to the first task that touches a host.

`python -m tests.command_server` reads a request per line, forks for each, and answers with one line. The forked process takes a
command's playbook apart with Ansible's own classes and runs its tasks `control` and `add_host` with Ansible's own executor; any other
task ends it. Every `python -m control ...` that a task starts is another fork of it instead of a new Python.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras  # noqa: F401
import matplotlib.figure  # noqa: F401
import tensorflow as tf  # noqa: F401
from ansible import constants, context
from ansible.cli.playbook import PlaybookCLI
from ansible.executor.task_executor import TaskExecutor
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.playbook.block import Block
from ansible.playbook.play import Play
from ansible.playbook.play_context import PlayContext
from ansible.playbook.playbook_include import PlaybookInclude
from ansible.playbook.task import Task
from ansible.plugins import loader as plugins
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar
from ansible.utils.context_objects import CLIArgs
from ansible.utils.vars import load_extra_vars, load_options_vars
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

import control.__main__
from control.common import command_line, project
from plugins.callback import lockstep

OWN = ("control", "plan_prediction", *constants.add_internal_fqcns(("add_host", "validate_argument_spec")))
"""Actions that need no host, or refuse what they can before they touch one."""
CAMPAIGNS = ("sweep.run_trials",)
"""Tasks of this project's that start commands on hosts."""


class Forked(subprocess.Popen):
    """A process; `python -m control ...` in a fork of this one."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        if list(args)[1:3] != ["-m", "control"] or args[3] == "serve":
            super()._execute_child(args, *more)
            return
        _, _, _, _, cwd, _, _, _, _, stdin, _, _, stdout, _, stderr, *_ = more
        sys.stdout.flush()
        self.pid = os.fork()
        self._child_created = True
        if self.pid == 0:
            leave(lambda: control.__main__.main(args[3:]), [stdin, stdout, stderr], cwd)
        self._close_pipe_fds(*more[9:15])


def leave(act: Any, descriptors: list[int], folder: str | None) -> None:
    """In a forked process: do something with these as its standard streams, and exit with what it returns."""
    code = 1
    try:
        for standard, descriptor in enumerate(descriptors):
            if descriptor != -1:
                os.dup2(descriptor, standard)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin = os.fdopen(0, closefd=False)  # without what the other has read of its own
        if folder:
            os.chdir(folder)
        code = act() or 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rebase(root: Path) -> None:
    """Make another copy of the project the one that the loaded modules work in."""
    before = project.ROOT
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in ("control", "plugins", "benchmarks")]:
        for name, value in vars(module).items():
            if isinstance(value, Path) and value.is_relative_to(before):
                setattr(module, name, root / value.relative_to(before))


class Command:
    """One command: `said` are the lines that a user would read."""

    def __init__(self, root: Path, argv: list[str]):
        given = [] if any(word in ("-i", "--inventory") for word in argv) else ["-i", str(root / "inventory/local")]
        sys.argv = argv
        line = PlaybookCLI([*argv, *given])
        line.init_parser()
        # Ansible keeps these for the whole process.
        context.CLIARGS = CLIArgs.from_options(line.post_process_args(line.parser.parse_args(line.args[1:])))
        load_extra_vars.extra_vars = load_options_vars.options_vars = None
        self._loader = DataLoader()
        self._inventory = InventoryManager(self._loader, context.CLIARGS["inventory"])
        self._variables = VariableManager(self._loader, self._inventory, PlaybookCLI.version_info(gitinfo=False))
        HostVars(self._inventory, self._variables, self._loader)
        self.said: list[str] = []
        self._last: list[str] = []
        self.result: dict[str, Any] = {"changed": False, "returncode": 0, "reached": None, "facts": {}}

    def run(self) -> dict[str, Any]:
        """Run it to its end, its failure, or the first task that touches a host: `reached`."""
        for play in self._plays(Path(context.CLIARGS["args"][0]).resolve()):
            self._play(play)
            if self.result["returncode"] or self.result["reached"]:
                break
        return {**self.result, "stdout": "\n".join([*self.said, *self._last])}

    def _plays(self, path: Path) -> Iterator[Play]:
        """The plays of a playbook and of those that it imports, each loaded when it begins."""
        self._loader.set_basedir(str(path.parent))
        for entry in self._loader.load_from_file(str(path), trusted_as_template=True):
            settings = {"variable_manager": self._variables, "loader": self._loader}
            if "ansible.builtin.import_playbook" in entry:
                imported: Playbook = PlaybookInclude.load(entry, basedir=str(path.parent), **settings)
                yield from imported.get_plays() if imported else []
            else:
                yield Play.load(entry, **settings)

    def _play(self, play: Play) -> None:
        play.post_validate(Templar(self._loader, self._variables.get_vars(play=play)))
        hosts, stage = self._inventory.get_hosts(play.hosts), [f"--- {play.get_name().strip()}"]
        for task in [one for block in play.compile() for one in tasks_of(block)] if hosts else []:
            for host in hosts[:1] if task.run_once else hosts:
                returned = self._task(play, task, host, hosts)
                if returned.get("skipped"):
                    continue
                self.said += stage[:1]
                stage.clear()
                self._show(returned, task, host)
                if self.result["returncode"] or self.result["reached"]:
                    return
                facts = dict(returned.get("ansible_facts", {}))
                self.result["facts"] |= facts
                for other in hosts if task.run_once else [host]:
                    self._variables.set_host_facts(other.name, facts.copy())
                    if task.register:
                        self._variables.set_nonpersistent_facts(other.name, {task.register: returned})

    def _task(self, play: Play, task: Task, host: Any, hosts: list[Any]) -> dict[str, Any]:
        names = [one.name for one in hosts]
        variables = self._variables.get_vars(play=play, host=host, task=task, _hosts=names, _hosts_all=names)
        if task.implicit:
            return {"skipped": True}
        if task.action not in OWN or task.args.get("do") in CAMPAIGNS:
            templar = Templar(self._loader, variables)
            runs = all(templar.evaluate_conditional(condition) for condition in task.when)
            return {"reached": f"{play.get_name()}: {task.get_name()}"} if runs else {"skipped": True}
        executor = TaskExecutor(host, task, variables, PlayContext(play), self._loader, plugins, None, self._variables)
        returned = executor.run()
        for added in (one["add_host"] for one in returned.get("results", [returned]) if "add_host" in one):
            self._inventory.add_dynamic_host(added, {})
        return returned

    def _show(self, returned: dict[str, Any], task: Task, host: Any) -> None:
        self.result["reached"] = returned.get("reached")
        if returned.get("failed"):
            message = lockstep.shown(str(returned["msg"]))
            self.said.append(message if task.run_once or host.name in message else f"{host.name}: {message}")
            self.result["returncode"] = 2
            return
        self.result["changed"] |= bool(returned.get("changed"))
        self.said += [lockstep.shown(returned["show"])] if returned.get("show") else []
        self._last += [lockstep.shown(returned["show_last"])] if returned.get("show_last") else []
        self.said += [f"[WARNING]: {warning}" for warning in returned.get("warnings", [])]


def tasks_of(block: Block) -> Iterator[Task]:
    """The tasks of a block, in order."""
    for one in block.block:
        yield from tasks_of(one) if isinstance(one, Block) else [one]


def named(place: str) -> tuple[Any, str]:
    """The module of `module:name`, and the name."""
    module, _, name = place.partition(":")
    return importlib.import_module(module), name


def answer(request: dict[str, Any]) -> int:
    """In a forked process: run a command, or call a function, and write what came of it."""
    os.environ.clear()
    os.environ.update(request["environment"], LOCKSTEP_TTY="0")
    os.umask(0o022)
    root = Path(request["root"])
    rebase(root)
    subprocess.Popen = Forked
    for place, value in request["constants"].items():
        setattr(*named(place), value)
    call = request.get("call")
    result = getattr(*named(call))(*request["arguments"]) if call else Command(root, request["argv"]).run()
    Path(request["answer"]).write_text(json.dumps(result))
    return 0


def warm_up() -> None:
    """Load what commands need: this project's modules, Ansible's plugins, the names that an inventory may set."""
    for module in pkgutil.walk_packages(control.__path__, "control."):
        importlib.import_module(module.name)
    init_plugin_loader()
    names = command_line.inventory_variables()
    command_line.inventory_variables = lambda: names
    refused = Command(project.ROOT, ["ansible-playbook", "train.yml", "-e", "warm=up"]).run()
    assert refused["returncode"] == 2, refused


def main() -> None:
    """Answer requests until the input ends."""
    warm_up()
    gc.freeze()  # a collection in a fork would copy all pages
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            with open(request["log"], "w") as log, open(os.devnull) as nothing:
                leave(lambda request=request: answer(request), [nothing.fileno(), log.fileno(), log.fileno()], request["root"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        print("done", flush=True)


if __name__ == "__main__":
    main()
