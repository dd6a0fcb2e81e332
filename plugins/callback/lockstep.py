"""Terminal output for people: stages instead of tasks, what a task wants to show, failures in full.

A task shows a text by returning `show`. With `-v` everything of Ansible's default output is there.
"""

import atexit
import os
import re
import shlex
import sys
from pathlib import Path

from ansible import constants, context
from ansible.errors import AnsibleError
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.template import Templar

DOCUMENTATION = """
name: lockstep
type: stdout
short_description: Stages, progress and results instead of task lists
description:
  - Prints the name of a play as a stage, the text that a task returns as C(show), and failures.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""


COMMAND = re.compile(r"ansible-playbook (?=(playbooks/|benchmarks/)?\w+\.yml)(?!lab\.yml)")


class CallbackModule(Default):
    """The default output, made quiet."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "lockstep"

    def __init__(self):
        """Note facts that only the main process can know."""
        super().__init__()
        self._main = os.getpid()
        self._run_under_way = self._if_interrupted = None
        self._stage = ""
        self._play = self._variables = None
        self._last_words = []
        self._told = set()
        os.environ["LOCKSTEP_TTY"] = "1" if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else "0"
        sys.stdout = Unbroken(sys.stdout)
        atexit.register(self._hint_if_interrupted)

    def v2_playbook_on_start(self, playbook):
        refuse_foreign_environment()
        super().v2_playbook_on_start(playbook)

    @property
    def _wordy(self):
        return self._display.verbosity > 0

    def _hint_if_interrupted(self):
        """After Ctrl-C: training goes on, and this is how to see it; or what becomes of a sweep."""
        if os.getpid() == self._main and self._if_interrupted:
            print(f"\n{as_typed(self._if_interrupted)}", flush=True)
        if os.getpid() == self._main and self._run_under_way:
            from trainer.analysis import text

            print(f"\nTraining goes on: {self._run_under_way}\n{as_typed(text.under_way(self._run_under_way))}", flush=True)

    def v2_playbook_on_play_start(self, play):
        self._play, self._variables = play, play.get_variable_manager()
        if self._wordy:
            super().v2_playbook_on_play_start(play)
        else:
            self._stage = play.get_name().strip()

    def v2_playbook_on_task_start(self, task, is_conditional):
        if self._wordy:
            super().v2_playbook_on_task_start(task, is_conditional)
        elif self._stage and self._runs(task):
            self._display.display(f"--- {self._stage}")
            self._stage = ""

    def _runs(self, task):
        """Whether a task's conditions hold on the first of its hosts: a stage that is left out is not announced."""
        hosts = self._variables._inventory.get_hosts(self._play.hosts) if task.when else []
        if not hosts:
            return True
        known = self._variables.get_vars(play=self._play, host=hosts[0], task=task)
        try:
            return all(Templar(self._variables._loader, known).evaluate_conditional(condition) for condition in task.when)
        except AnsibleError:
            return True  # the task itself will say what is wrong

    def v2_playbook_on_handler_task_start(self, task):
        if self._wordy:
            super().v2_playbook_on_handler_task_start(task)

    def v2_playbook_on_include(self, included_file):
        if self._wordy:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_matched(self):
        if self._wordy:
            super().v2_playbook_on_no_hosts_matched()

    def v2_runner_on_start(self, host, task):
        if self._wordy:
            super().v2_runner_on_start(host, task)

    def v2_runner_on_ok(self, result):
        returned = self._returned(result)
        self._follow(returned)
        if returned.get("show"):
            self._display.display(as_typed(returned["show"]))
        if returned.get("show_last"):
            self._last_words.append(as_typed(returned["show_last"]))
        if self._wordy:
            super().v2_runner_on_ok(result)

    def v2_runner_item_on_ok(self, result):
        if self._wordy:
            super().v2_runner_item_on_ok(result)

    def v2_runner_on_skipped(self, result):
        if self._wordy:
            super().v2_runner_on_skipped(result)

    def v2_runner_item_on_skipped(self, result):
        if self._wordy:
            super().v2_runner_item_on_skipped(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        returned = self._returned(result)
        self._follow(returned)
        if self._wordy or not returned.get("msg"):
            super().v2_runner_on_failed(result, ignore_errors)
        elif not ignore_errors and returned["msg"] not in self._told:
            self._told.add(returned["msg"])
            message = as_typed(str(returned["msg"]))
            self._display.display(
                f"{result.host.get_name()}: {message}" if self._names_host(result) else message, color=constants.COLOR_ERROR
            )

    def v2_runner_on_unreachable(self, result):
        if self._wordy:
            super().v2_runner_on_unreachable(result)
        elif not result.task.ignore_unreachable:
            self._display.display(self._unreachable(result), color=constants.COLOR_UNREACHABLE)

    def _unreachable(self, result):
        """What SSH's error means, and what mends it."""
        from trainer.analysis import checks

        name = result.host.get_name()
        known = self._variables.get_vars(play=self._play, host=result.host) if self._variables else result.host.get_vars()
        host = {"name": name, "address": str(known.get("ansible_host", name))}
        host |= {key: known[variable] for key, variable in (("user", "ansible_user"), ("ssh_port", "ansible_port")) if variable in known}
        found = checks.ssh(host, str(self._returned(result).get("msg", "")))
        return as_typed(f"{name}: {found.value}. Mend: {found.mend}")

    def v2_playbook_on_stats(self, stats):
        super().v2_playbook_on_stats(stats)
        for words in self._last_words:
            self._display.display(words)

    @staticmethod
    def _returned(result):
        return getattr(result, "result", None) or result._result

    @staticmethod
    def _names_host(result):
        message = str(CallbackModule._returned(result)["msg"])
        return not result.task.run_once and result.host.get_name() not in message

    def _follow(self, returned):
        """Remember a run that goes on without this process, and what is to be said when this one ends early."""
        self._if_interrupted = returned.get("if_interrupted", self._if_interrupted)
        if "run_under_way" in returned:
            self._run_under_way = returned["run_under_way"]


class Unbroken:
    """Standard output that may lose its reader (`| head`): the command then finishes its work unseen.

    Ansible's thread that takes results ends at a broken pipe, and the command would wait for ever.
    """

    def __init__(self, stream):
        """Write to this stream."""
        self._stream = stream

    def __getattr__(self, name):
        """Everything else is the stream's."""
        return getattr(self._stream, name)

    def write(self, text):
        """Write, to nowhere once nobody reads."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self):
        """Flush, likewise."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def refuse_foreign_environment():
    """End when `.venv` is another copy's: its packages are the other project's, and it is that project's runs that would be touched."""
    from plugins.shared import control

    here = Path(__file__).resolve().parents[2]
    if here != control.ROOT:
        print(f"error: these playbooks lie in {here}, the Python environment belongs to {control.ROOT}; in {here}: make setup", flush=True)
        sys.exit(1)


def as_typed(text):
    """A text with the inventory that this command was given put into the commands that it names."""
    given = (context.CLIARGS.get("inventory") or ()) if context.CLIARGS else ()
    if not given or not any(argument.startswith(("-i", "--inventory")) for argument in sys.argv[1:]):
        return text
    options = " ".join(f"-i {shlex.quote(_relative(one))}" for one in given)
    return COMMAND.sub(lambda found: f"{found.group(0)}{options} ", text)


def _relative(path):
    """A path below the current folder as a person would type it."""
    return os.path.relpath(path) if path.startswith(f"{os.getcwd()}/") else path
