"""Commands in processes of their own, started with their request or before it."""

import multiprocessing
import signal

import pytest

from control.remote import trainer_process
from tests.project import await_until
from trainer.common.errors import LockstepError

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


def test_a_forked_process_may_ask(program):
    """Ansible forks a process for each task."""
    program(f"print('a warning', file=sys.stderr); {ANSWERS}")
    trainer_process.begin(PLAN)
    forked = multiprocessing.get_context("fork").Process(target=_ask)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0


def _ask():
    assert trainer_process.run_trainer(PLAN, given=[1]) == {"got": [1]}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.stdin.readline(); sys.exit('error: epochs=-3 is none')", "epochs=-3 is none"),
        ("sys.exit('error: gone before')", "gone before"),
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


def test_nobody_asks_and_it_ends(program):
    program(ANSWERS)
    trainer_process.begin(PLAN)
    (begun,) = trainer_process._begun.values()
    begun._process.stdin.close()
    assert begun._process.wait(60) == 1


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
