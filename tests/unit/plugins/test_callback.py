"""The output of commands: what it does when nobody reads it any more."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from ansible import constants
from ansible.executor.process.worker import WorkerProcess

from control.runs.launch import recent_check
from plugins.callback import lockstep
from plugins.callback.lockstep import CallbackModule
from plugins.shared.interrupts import after_forks
from tests.unit.conftest import ROOT

SAY = """
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        for _ in range(40):
            Display().display("x" * 2000)
        return {**super().run(tmp, task_vars), "changed": False}
"""


HOSTILE = "a\x1b]0;evil\x07b\x1b[2Jc\x9b31md\u202ee\rf\x1b[8mg"
BRING = f"""
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from control.common import text
from control.runs.show.progress import Line


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        hostile = {HOSTILE!r}
        line = Line(Display(), terminal=True)
        line.update(hostile)
        line.print(hostile)
        Display().warning(hostile)
        Display().display(hostile)
        Display().display(hostile, stderr=True)
        if self._task.args.get("fail"):
            raise AnsibleActionFail(hostile)
        return {{**super().run(tmp, task_vars), "show": hostile, "show_last": text.table(["class"], [[hostile + "\\nSUCCEEDED"]])}}
"""


def playing(folder, plays, *options, actions=None, **environment):
    """Arguments of `subprocess.Popen` for a playbook on this machine, with actions by name."""
    (folder / "play.yml").write_text(json.dumps(plays))
    for name, text in (actions or {}).items():
        (folder / f"{name}.py").write_text(text)
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", *options, str(folder / "play.yml")]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}"]
    plain = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_RECAP"}
    own = {"PYTHONPATH": str(ROOT), "ANSIBLE_ACTION_PLUGINS": str(folder)}
    return {"args": argv, "cwd": ROOT, "env": {**plain, **own, **environment}}


def a_play(*tasks, **more):
    return {"name": "Some", "hosts": "localhost", "gather_facts": False, "tasks": [*tasks], **more}


@pytest.mark.parametrize("wordy", [False, True])
@pytest.mark.parametrize("fail", [False, True])
def test_no_control_sequence_of_others_reaches_the_terminal(fail, wordy, tmp_path):
    """Of a node's lines, a class or a file's name: through whatever way a text comes."""
    plays, options = [a_play({"name": "Bring", "bring": {"fail": fail}})], ["-v"] if wordy else []
    given = playing(tmp_path, plays, *options, actions={"bring": BRING}, ANSIBLE_FORCE_COLOR="1")
    done = subprocess.run(**given, capture_output=True, check=False, timeout=60)
    assert (done.returncode != 0) == fail
    for output in (done.stdout.decode(), done.stderr.decode()):
        ours = output.replace("\r\x1b[2K", "")
        left = re.sub(r"\x1b\[[0-9;]*m", "", ours)
        assert all(character.isprintable() or character in "\n\t" for character in left), repr(left)
        assert "\\x1b]0;evil\\x07b" in left
    assert fail or "\\nSUCCEEDED" in done.stdout.decode()


def test_a_command_whose_output_loses_its_reader_finishes_its_work(tmp_path):
    """Ansible's own thread of results would end at the first line of progress, and the command wait for ever."""
    done = tmp_path / "done"
    tasks = [{"name": "Say", "say": {}}, {"name": "Done", "file": {"path": str(done), "state": "touch"}}]
    read, write = os.pipe()
    process = subprocess.Popen(**playing(tmp_path, [a_play(*tasks)], actions={"say": SAY}), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    try:
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert done.is_file()


def test_stages_are_announced_unless_they_are_left_out(tmp_path):
    def stage(name, *conditions):
        return a_play(*({"name": "Note", "set_fact": {"known": True}, "when": condition} for condition in conditions), name=name)

    plays = [stage("First", True), stage("Left out", "missing is defined"), stage("Half", "not known", "known"), stage("Wrong", "missing")]
    done = subprocess.run(**playing(tmp_path, plays), capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == ["--- First", "--- Half", "--- Wrong"]
    assert done.returncode != 0
    assert "missing" in done.stdout


def test_when_a_process_began_is_when_it_was_started_and_not_when_it_asks():
    code = "print(flush=True); input(); from plugins.callback.lockstep import process_began; print(process_began())"
    before, pipes = time.time(), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, **pipes) as process:
        process.stdout.readline()
        asked = time.time()
        began = float(process.communicate("\n")[0])
    # The kernel counts in hundredths of a second.
    assert before - 0.05 < began < asked


def play(folder, tasks, *options, action=None, hosts="localhost", **environment):
    """What a play prints whose action is `say`."""
    given = playing(folder, [a_play(*tasks, hosts=hosts)], *options, actions={"say": action or TELL}, **environment)
    return subprocess.run(**given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60).stdout


TELL = """
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        return {**super().run(tmp, task_vars), **self._task.args}
"""
WARN = TELL.replace(
    "        return", "        Display().warning(f\"the {self._task.args['disk']} disk is nearly full\")\n        return"
).replace("import ActionBase\n", "import ActionBase\nfrom ansible.utils.display import Display\n")
WELL = [{"name": "Say", "say": {"show_last": "my-run: SUCCEEDED"}}]
BADLY = [{"name": "Say", "say": {"failed": True, "msg": "the run is gone"}}]


def test_a_command_ends_with_its_result_and_not_with_counts_of_tasks(tmp_path):
    assert play(tmp_path, WELL).strip().splitlines()[-1] == "my-run: SUCCEEDED"
    failed = play(tmp_path, BADLY)
    assert "the run is gone" in failed
    assert "PLAY RECAP" not in failed


def test_an_error_of_all_hosts_is_shown_once(tmp_path):
    assert play(tmp_path, BADLY, "-i", "first,second,", hosts="first,second").count("the run is gone") == 1


@pytest.mark.parametrize("options", [(), ("-v",)])
def test_a_tasks_warning_is_shown_once(options, tmp_path):
    """Ansible keeps it with the task's result, and shows it only where the result itself is shown."""
    tasks = [{"name": "Say", "say": {**task["say"], "disk": disk}} for task, disk in ((*WELL, "first"), (*BADLY, "second"))]
    shown = play(tmp_path, tasks, *options, action=WARN)
    assert [shown.count(f"[WARNING]: the {disk} disk is nearly full") for disk in ("first", "second")] == [1, 1]


@pytest.mark.parametrize(("options", "environment"), [(("-v",), {}), ((), {"LOCKSTEP_RECAP": "1"})])
def test_the_counts_come_after_the_result_where_they_are_asked_for(options, environment, tmp_path):
    before, recap, after = play(tmp_path, WELL, *options, **environment).partition("PLAY RECAP")
    assert recap
    assert "my-run: SUCCEEDED" in before
    assert "changed=0" in after


ABOUT_WORKERS = [
    *("train", "evaluate", "sweep", "report", "tensorboard", "status", "logs", "stop", "provision", "doctor"),
    *("playbooks/delete_run", "playbooks/slurm", "playbooks/visualize", "playbooks/lab_slurm"),
]
"""Commands; the other playbooks are parts of these, or about this machine alone."""


REFUSE = """
import contextlib, io, json, sys
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.context_objects import CLIArgs
from ansible.vars.manager import VariableManager
from plugins.callback.lockstep import refuse_empty_inventory

init_plugin_loader()
inventory, *names = sys.argv[1:]
context.CLIARGS = CLIArgs({"inventory": (inventory,)})
said = {}
for name in names:
    loader = DataLoader()
    playbook = Playbook.load(f"{name}.yml", VariableManager(loader, InventoryManager(loader, [inventory])), loader)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as output:
        refuse_empty_inventory(playbook)
    said[name] = output.getvalue()
print(json.dumps(said))
"""


def refusals(inventory, *names):
    """What commands say of an inventory before their first task, in one process; empty if they go on."""
    argv = [sys.executable, "-c", REFUSE, str(inventory), *names]
    return json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_a_command_without_workers_fails(tmp_path):
    (tmp_path / "hosts.yml").write_text("workers:\n  hosts:\n")
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(tmp_path), "train.yml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0, done.stdout
    assert done.stdout.startswith(f"error: {tmp_path}: the group `workers` has no hosts, and a command runs on all of them. Fix: write")
    assert done.stdout.count("Fix:") == 1


def test_without_workers_it_says_what_to_write_where(tmp_path):
    """Every command about workers, and none that is about this machine alone."""
    (tmp_path / "hosts.yml").write_text("workers:\n  hosts:\n")
    said = refusals(tmp_path, *ABOUT_WORKERS, "lab")
    assert said.pop("lab") == ""
    begin = f"error: {tmp_path}: the group `workers` has no hosts, and a command runs on all of them. Fix: write"
    fix = f"write into {tmp_path}/hosts.yml:\n\nworkers:\n  hosts:\n    node01: {{ansible_host: 10.0.0.1}}\n"
    assert {name: (words.startswith(begin), fix in words, words.count("Fix:")) for name, words in said.items()} == dict.fromkeys(
        ABOUT_WORKERS, (True, True, 1)
    )


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (
            "servers:\n  hosts:\n    pi1:\n    pi2:\n",
            "the group `workers` has no hosts, and a command runs on all of them; pi1, pi2 are in no such",
        ),
        (None, "there is no such file or folder"),
    ],
)
def test_an_inventory_without_the_group_says_what_it_has(content, rule, tmp_path):
    path = tmp_path / "mine.yml"
    if content is not None:
        path.write_text(content)
    said = refusals(path, "train")["train"]
    assert f"error: {path}: {rule}" in said
    assert f"Fix: write into {path}:" in said


MESSAGES = """
import os
import random
import signal
import sys
import threading
from types import SimpleNamespace

from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_queue_manager import FinalQueue

from plugins.shared.interrupts import finish_messages_before_dying

if sys.argv[1] == "finish":
    finish_messages_before_dying()
queue = FinalQueue()
threading.Thread(target=lambda: [queue.get() for _ in iter(int, 1)], daemon=True).start()
for trial in range(100):
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        itself = SimpleNamespace(pid=os.getpid())
        signal.signal(signal.SIGTERM, lambda number, frame: WorkerProcess._term(itself, number, frame))
        os.write(begun, b"1")
        send = lambda: [queue.put("x" * 20_000) for _ in iter(int, 1)]
        threading.Thread(target=send, daemon=True).start()
        send()
    os.read(ready, 1)
    threading.Event().wait(random.random() / 200)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    if os.WTERMSIG(status) != signal.SIGTERM or not queue._wlock.acquire(timeout=1):
        sys.exit(f"trial {trial}: ended with {status}, the queue of results stays locked")
    queue._wlock.release()
    for end in (ready, begun):
        os.close(end)
"""


@pytest.mark.parametrize("finish", [True, False])
def test_a_task_that_is_ended_while_it_sends_leaves_the_commands_queue_open(finish):
    """Else the command hangs for ever after Ctrl-C. Without our part Ansible's own handler shows the fault: the trial can fail."""
    argv = [sys.executable, "-c", MESSAGES, "finish" if finish else "as it is"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0) == finish, done.stderr
    assert finish or "the queue of results stays locked" in done.stderr


@pytest.mark.parametrize(
    ("returned", "failures", "dark", "check", "kept"),
    [
        pytest.param({"before_start": "..."}, {"a": 1}, {}, False, [False], id="a launch that fails"),
        pytest.param({"before_start": "..."}, {}, {"a": 1}, False, [False], id="a host that is away"),
        pytest.param({"before_start": "..."}, {}, {}, False, [], id="a launch that goes well"),
        pytest.param({"before_start": "..."}, {"a": 1}, {}, True, [], id="with --check"),
        pytest.param({}, {"a": 1}, {}, False, [], id="a plan that is refused"),
    ],
)
def test_a_launch_that_fails_has_hosts_checked_again(returned, failures, dark, check, kept, monkeypatch):
    """Also where nothing was started yet: what they passed before may no longer be true."""
    called = []
    monkeypatch.setattr(recent_check, "keep_if", called.append)
    monkeypatch.setattr(lockstep.context, "CLIARGS", {"check": check})
    callback = CallbackModule.__new__(CallbackModule)
    vars(callback).update(_last_words=[], _explained=True, _launches=False, _display=SimpleNamespace(verbosity=0))
    callback._if_interrupted = callback._before_start = callback._launch = callback._run_under_way = None
    callback._follow(returned)
    callback._follow({"before_start": None} if returned else {})
    callback.v2_playbook_on_stats(SimpleNamespace(failures=failures, dark=dark))
    assert called == kept


def test_ansible_looks_for_results_rarely_while_a_run_is_watched(monkeypatch):
    """Its 1 ms would take a tenth of a core from workers on this machine."""
    default = constants.DEFAULT_INTERNAL_POLL_INTERVAL
    callback, intervals = CallbackModule.__new__(CallbackModule), []
    callback._poll_interval, callback._stage = default, ""
    callback._display = SimpleNamespace(verbosity=0)
    monkeypatch.setattr(constants, "DEFAULT_INTERNAL_POLL_INTERVAL", default)
    for action in ("control", "watch_run", "worker_claim"):
        callback.v2_playbook_on_task_start(SimpleNamespace(action=action), False)
        intervals.append(constants.DEFAULT_INTERNAL_POLL_INTERVAL)
    assert intervals == [default, 0.1, default]


def test_ctrl_c_lets_a_fork_end(monkeypatch):
    order = []

    def fork(process):
        handle(signal.SIGINT, None)
        order.append("forked")

    monkeypatch.setattr(WorkerProcess, "start", fork)
    handle = after_forks(lambda number, frame: order.append("interrupted"))
    WorkerProcess.start(None)
    assert order == ["forked", "interrupted"]
    handle(signal.SIGINT, None)
    assert order == ["forked", "interrupted", "interrupted"]
