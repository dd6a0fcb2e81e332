"""Commands in processes of their own, started with their request or before it."""

import io
import json
import multiprocessing
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from control.__main__ import main
from control.remote import trainer_process
from tests.project import await_until
from tests.unit.samples import ROOT
from trainer.common.errors import DONE, LockstepError
from trainer.worker import process

PLAN = ["program"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Lets `python -m control program` be this text, in a folder of its own."""

    def write(text):
        (tmp_path / "control").mkdir()
        (tmp_path / "control" / "__init__.py").touch()
        (tmp_path / "control" / "__main__.py").write_text(f"import json, sys\n{text}\n")
        monkeypatch.setattr(trainer_process.project, "ROOT", tmp_path)

    monkeypatch.setattr(trainer_process, "_begun", {})
    return write


ANSWERS = "print('working'); print(json.dumps({'got': json.loads(sys.stdin.readline())}))"


@pytest.mark.parametrize("early", [False, True])
def test_it_answers_to_its_request(early, program):
    program(ANSWERS)
    if early:
        trainer_process.begin(PLAN)
    assert trainer_process.run_trainer(PLAN, given={"a": ["ä"]}) == {"got": {"a": ["ä"]}}


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        (f"print('a warning', file=sys.stderr); {ANSWERS}", {"got": [1]}),
        ("sys.stdin.readline(); sys.exit('error: epochs=-3 is none')", "epochs=-3 is none"),
        ("sys.stdin.readline(); import os; os.kill(os.getpid(), 9)", "the program ended without a result"),
    ],
    ids=["answered", "refused", "killed"],
)
def test_a_forked_process_may_ask(text, heard, program):
    """Ansible forks a process for each task, which is not told how the command ended."""
    program(text)
    trainer_process.begin(PLAN)
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    forked = context.Process(target=_ask, args=[said])
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
    assert said.get() == heard


def _ask(said):
    try:
        said.put(trainer_process.run_trainer(PLAN, given=[1]))
    except LockstepError as error:
        said.put(str(error))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.stdin.readline(); sys.exit('error: epochs=-3 is none')", "epochs=-3 is none"),
        ("sys.exit(3)", "the program failed with exit code 3"),
        ("print(json.dumps({})); sys.exit('error: after all')", "after all"),
    ],
)
def test_its_refusal_is_the_error(text, message, early, program):
    program(text)
    if early:
        trainer_process.begin(PLAN)
    with pytest.raises(LockstepError, match=f"^{message}$"):
        trainer_process.run_trainer(PLAN, given={})


def test_what_ended_early_says_why(program):
    """Before it was asked."""
    program("sys.exit('error: no such configuration')")
    trainer_process.begin(PLAN)
    (begun,) = trainer_process._begun.values()
    begun._process.wait(60)
    with pytest.raises(LockstepError, match=r"^no such configuration$"):
        trainer_process.run_trainer(PLAN, given={"large": "x" * 2**20})


def test_nobody_asks_and_it_ends(program):
    program(ANSWERS)
    trainer_process.begin(PLAN)
    (begun,) = trainer_process._begun.values()
    begun._process.stdin.close()
    assert begun._process.wait(60) == 1


def test_it_ends_with_who_began_it(program, tmp_path):
    program(f"import atexit, pathlib; atexit.register(pathlib.Path('ended').touch); {ANSWERS}")
    code = (
        "import os, pathlib, signal, sys; from control.remote import trainer_process; "
        "trainer_process.project.ROOT = pathlib.Path(sys.argv[1]); "
        "trainer_process.begin(['program']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    await_until((tmp_path / "ended").exists, 60, "its end")


def test_an_interrupted_command_is_killed(program, monkeypatch):
    program("print('working', flush=True); sys.stdin.readline(); sys.stdin.read(); import signal; signal.pause()")

    class Interrupted(trainer_process.Line):
        def update(self, line):
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer_process, "Line", Interrupted)
    trainer_process.begin(PLAN)
    (begun,) = trainer_process._begun.values()
    with pytest.raises(KeyboardInterrupt):
        trainer_process.run_trainer(PLAN, given={})
    await_until(lambda: begun._process.poll() is not None, 60, "its end")
    assert begun._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        ("parameters", "control.runs.planning.examine_model", "examine"),
        ("new-examples", "control.runs.predict.prediction_job", "prepare"),
        ("export", "control.serving.saved_model", "export"),
    ],
)
def test_a_command_reads_one_line(command, module, name, monkeypatch, capsys):
    """Who asks may leave the pipe open."""
    for prepare in ("load_tensorflow", "quiet_tensorflow"):
        monkeypatch.setattr(process, prepare, lambda: None)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: lambda **given: {"got": given}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a": 1}\n{'))
    assert main([command]) == DONE
    assert json.loads(capsys.readouterr().out) == {"got": {"a": 1}}
