"""Terminal output for users: stages instead of tasks, what a task wants to show, failures in full.

A task shows a text by returning `show`. With `-v`, all of Ansible's default output is shown.
"""

import atexit
import gc
import json
import os
import signal
import sys
import time
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


LASTING = ("watch_run", "follow_log")
"""Tasks that last as long as a training."""
QUIET_S = 0.1
"""Between two looks at whether they have ended. Ansible's default of 1 ms takes a tenth of a core from workers on this machine."""
OBJECTS = 50_000
"""New objects after which Python looks for garbage. With its default of 700, a tenth of a command's processor time goes there."""
PLANNED = ("train.yml", "doctor.yml")
"""Playbooks whose first task needs `python -m control plan`."""
PATIENT = (2, 3)
"""Further Ctrl-C that have no effect: the first is being handled."""


class CallbackModule(Default):
    """Ansible's default output, made quiet."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "lockstep"

    def __init__(self):
        """Record facts that only the main process can know."""
        super().__init__()
        self._main = os.getpid()
        gc.set_threshold(OBJECTS)
        self._poll_interval = constants.DEFAULT_INTERNAL_POLL_INTERVAL
        self._run_under_way = self._if_interrupted = self._before_start = self._launch = None
        self._launches = False
        self._interrupts = 0
        self._stage, self._stages = "", []
        self._play = self._variables = None
        self._last_words = []
        self._messages_shown = set()
        self._explained = False
        os.environ["LOCKSTEP_ENTERED"] = repr(process_began())
        os.environ["LOCKSTEP_TTY"] = "1" if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else "0"
        sys.stdout, sys.stderr = Unbroken(sys.stdout), Unbroken(sys.stderr)
        atexit.register(self._last_word)

    def v2_playbook_on_start(self, playbook):
        _refuse_foreign_environment()
        from control.common.terminal_lines import keeping_ours

        sys.stdout.clean = sys.stderr.clean = keeping_ours
        if Path(playbook._file_name).name in PLANNED:
            from control.remote import trainer_process

            # It imports what it needs while Ansible gets ready for the first task.
            trainer_process.begin(["plan"])
        refuse_empty_inventory(playbook)
        from plugins.shared.interrupts import finish_messages_before_dying

        finish_messages_before_dying()
        self._heed_interrupts()
        super().v2_playbook_on_start(playbook)

    @property
    def _wordy(self):
        return self._display.verbosity > 0

    def _heed_interrupts(self):
        """Make Ctrl-C end the command whatever it is doing, and only once: the final message comes after a few seconds."""
        from plugins.shared.interrupts import after_forks

        ansibles, others = signal.getsignal(signal.SIGINT), sys.unraisablehook

        def interrupt(number, frame):
            self._interrupts += 1
            if self._interrupts in PATIENT:
                return
            try:
                ansibles(number, frame)
            finally:
                signal.signal(signal.SIGINT, handler)

        def swallowed(what):
            # While an object is finalized, Python can't raise what a signal handler raises, and Ansible would go on.
            if what.exc_type is KeyboardInterrupt and os.getpid() == self._main:
                signal.signal(signal.SIGALRM, lambda _, frame: ansibles(signal.SIGINT, frame))
                signal.setitimer(signal.ITIMER_REAL, 0.001)
            else:
                others(what)

        handler = after_forks(interrupt)
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = swallowed

    def _last_word(self):
        """After Ctrl-C, or a failure: what goes on without this command, and what does not."""
        from control.runs.results import next_steps

        if os.getpid() != self._main:
            return
        # Nothing may interrupt this; not SIG_IGN: child processes would inherit it.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, lambda *_: None)
        if self._if_interrupted:
            print(f"\n{as_typed(self._if_interrupted)}", flush=True)
        if self._launch:
            self._take_back()
        elif self._run_under_way:
            print(f"\nTraining goes on: {self._run_under_way}\n{as_typed(next_steps.under_way(self._run_under_way))}", flush=True)
        elif self._interrupts and self._before_start:
            print(f"\n{as_typed(self._before_start)}", flush=True)

    def _take_back(self):
        """Some workers may have started, perhaps not all."""
        from control.runs.launch import launches

        print(f"\nTaking the launch of {self._launch['run']} back; this takes a few seconds ...", flush=True)
        print(as_typed(launches.take_back(self._launch)), flush=True)

    def v2_playbook_on_play_start(self, play):
        self._play, self._variables = play, play.get_variable_manager()
        self._stages.append((play.get_name().strip(), time.time()))
        os.environ["LOCKSTEP_STAGES"] = json.dumps(self._stages)
        if self._wordy:
            super().v2_playbook_on_play_start(play)
        else:
            self._stage = play.get_name().strip()

    def v2_playbook_on_task_start(self, task, is_conditional):
        constants.DEFAULT_INTERNAL_POLL_INTERVAL = QUIET_S if task.action in LASTING else self._poll_interval
        if self._wordy:
            super().v2_playbook_on_task_start(task, is_conditional)
        elif self._stage and self._runs(task):
            self._display.display(f"--- {self._stage}")
            self._stage = ""

    def _runs(self, task):
        """Return whether a task's conditions hold on the first of its hosts: a skipped stage is not announced."""
        hosts = self._variables._inventory.get_hosts(self._play.hosts) if task.when else []
        if not hosts:
            return True
        variables = self._variables.get_vars(play=self._play, host=hosts[0], task=task)
        try:
            return all(Templar(self._variables._loader, variables).evaluate_conditional(condition) for condition in task.when)
        except AnsibleError:
            return True  # the task itself will say what is wrong

    def v2_runner_on_ok(self, result):
        returned = self._returned(result)
        self._follow(returned)
        if returned.get("show"):
            self._display.display(shown(returned["show"]))
        if returned.get("show_last"):
            self._last_words.append(shown(returned["show_last"]))
        if self._wordy:
            super().v2_runner_on_ok(result)
        else:
            self._handle_warnings(returned)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._explained = self._explained or not ignore_errors
        returned = self._returned(result)
        self._follow(returned)
        if self._wordy or not returned.get("msg"):
            super().v2_runner_on_failed(result, ignore_errors)
            return
        self._handle_warnings(returned)
        if not ignore_errors and returned["msg"] not in self._messages_shown:
            self._messages_shown.add(returned["msg"])
            message = shown(str(returned["msg"]))
            self._display.display(
                f"{result.host.get_name()}: {message}" if self._names_host(result) else message, color=constants.COLOR_ERROR
            )

    def v2_runner_on_unreachable(self, result):
        if self._wordy:
            super().v2_runner_on_unreachable(result)
        elif not result.task.ignore_unreachable:
            self._explained = True
            self._display.display(self._unreachable(result), color=constants.COLOR_UNREACHABLE)

    def _unreachable(self, result):
        """The meaning of an SSH error, and its fix."""
        from control.doctor.checks.ssh_errors import ssh

        name = result.host.get_name()
        variables = self._variables.get_vars(play=self._play, host=result.host) if self._variables else result.host.get_vars()
        host = {"name": name, "address": str(variables.get("ansible_host", name))}
        host |= {key: variables[name] for key, name in (("user", "ansible_user"), ("ssh_port", "ansible_port")) if name in variables}
        finding = ssh(host, str(self._returned(result).get("msg", "")))
        return shown(f"{name}: {finding.value}. Fix: {finding.fix}")

    def v2_playbook_on_stats(self, stats):
        """The result, then Ansible's counts: only with full output, or if nothing else says what failed."""
        for words in self._last_words:
            self._display.display(words)
        if self._launches and (stats.failures or stats.dark) and not context.CLIARGS.get("check"):
            from control.runs.launch import recent_check

            recent_check.keep_if(False)
        unexplained = (stats.failures or stats.dark) and not self._explained
        if self._wordy or unexplained or os.environ.get("LOCKSTEP_RECAP"):
            super().v2_playbook_on_stats(stats)

    @staticmethod
    def _returned(result):
        return getattr(result, "result", None) or result._result

    @staticmethod
    def _names_host(result):
        message = str(CallbackModule._returned(result)["msg"])
        return not result.task.run_once and result.host.get_name() not in message

    def _follow(self, returned):
        """Remember a run that goes on without this process, and the message for an early end of this one."""
        self._if_interrupted = returned.get("if_interrupted", self._if_interrupted)
        self._before_start = returned.get("before_start", self._before_start)
        self._launches = self._launches or bool(self._before_start)
        self._launch = returned.get("launch_begun", self._launch)
        self._run_under_way = returned.get("run_under_way", self._run_under_way)


def _with_full_output(name):
    """A method of Ansible's default output that prints only with `-v`."""

    def method(self, *arguments):
        if self._wordy:
            getattr(Default, name)(self, *arguments)

    return method


for _event in (
    "v2_playbook_on_handler_task_start",
    "v2_playbook_on_include",
    "v2_playbook_on_no_hosts_matched",
    "v2_runner_item_on_ok",
    "v2_runner_on_skipped",
    "v2_runner_item_on_skipped",
):
    setattr(CallbackModule, _event, _with_full_output(_event))


class Unbroken:
    """Output that may lose its reader (`| head`): the command then finishes its work unseen.

    Ansible's results thread ends at a broken pipe, and the command would wait forever. No control sequences pass except the
    commands' own, whatever a host, a file or a name contains.
    """

    def __init__(self, stream):
        """Write the output of `clean` to this stream."""
        self._stream, self.clean = stream, str

    def __getattr__(self, name):
        """Delegate everything else to the stream."""
        return getattr(self._stream, name)

    def write(self, text):
        """Write; to nowhere once nobody reads."""
        try:
            return self._stream.write(self.clean(text))
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self):
        """Flush; a lost reader is ignored."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def process_began():
    """Start time of this process, in seconds since 1970: the best estimate of when Enter was pressed."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def _refuse_foreign_environment():
    """End if `.venv` belongs to another copy: its packages and the runs touched would be the other project's."""
    from control.common import project

    here = Path(__file__).resolve().parents[2]
    if here != project.ROOT:
        print(f"error: these playbooks lie in {here}, the Python environment belongs to {project.ROOT}; in {here}: make setup", flush=True)
        sys.exit(1)


def shown(text):
    """A task's text in its form for the terminal."""
    from control.common import command_line
    from control.common.terminal_lines import printable_lines, wrapped

    return wrapped(as_typed(printable_lines(text)), command_line.columns())


def refuse_empty_inventory(playbook):
    """End if the inventory of a worker command has no workers: Ansible would warn, do nothing and report success."""
    plays = playbook.get_plays()
    if not any("workers" in play.hosts for play in plays):
        return
    inventory = plays[0].get_variable_manager()._inventory
    group = inventory.groups.get("workers")
    if group is None or not group.get_hosts():
        print(f"error: {_no_workers(list(context.CLIARGS['inventory']), sorted(inventory.hosts))}", flush=True)
        sys.exit(1)


NO_WORKERS = """{inventory}: {rule}. Fix: write into {file}:

workers:
  hosts:
    node01: {{ansible_host: 10.0.0.1}}
    node02: {{ansible_host: 10.0.0.2}}

inventory/sample shows what else can be set."""


def _no_workers(sources, hosts):
    """Message about an inventory without workers: its gap, and the page that documents inventories."""
    from control.common.project import relative

    paths = [Path(source) for source in sources if "," not in source]
    lost = [str(path) for path in paths if not path.exists()]
    rule = "the group `workers` has no hosts, and a command runs on all of them"
    rule += f"; {', '.join(hosts[:5])} {'are' if len(hosts) > 1 else 'is'} in no such group" if hosts else ""
    file = next((path / "hosts.yml" if path.is_dir() else path for path in paths), Path("inventory/mine/hosts.yml"))
    shown = ", ".join(relative(Path(source)) for source in sources)
    return NO_WORKERS.format(inventory=shown, rule="there is no such file or folder" if lost else rule, file=relative(file))


def as_typed(text):
    """A text whose commands name the inventory that this command was given."""
    from control.common import command_line

    return command_line.as_typed(text)
