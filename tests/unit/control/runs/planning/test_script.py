"""A script of the user's own: what is sent, what is refused before a host is touched, how a host starts it."""

import hashlib
import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
import yaml

from control.remote import admission
from control.runs.planning import script_plan
from control.runs.planning.host_choice import choose_hosts
from control.runs.planning.plan_request import Inventory, OperatorRequest, Request
from control.runs.results.outcome import Verdict, Verdicts, of_exit_code
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.common.files import write_json
from trainer.common.plain_values import to_plain
from trainer.launch.user_script import Script
from trainer.rundir.launch_record import Host

HOSTS = [Host(name=f"pi{number}", address=f"10.0.0.{number}", port=12345, direct_port=13345) for number in (1, 2, 3)]
EVIL = ["$(touch x)", "`touch x`", "{{ lookup('pipe', 'touch x') }}", "it's", 'a "b"', "two\nlines", "../..", "; rm -rf /", "--", "-e", ""]


@pytest.fixture
def folder(tmp_path):
    """A script's folder."""
    made = tmp_path / "mine"
    (made / "data").mkdir(parents=True)
    (made / "main.py").write_text("print(1)")
    (made / "data" / "two words.csv").write_text("1,2")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "x.pyc").touch()
    (made / ".git").mkdir()
    (made / ".git" / "config").touch()
    return made


@pytest.fixture
def ask(tmp_path):
    """The plan of operator variables."""

    def planned(**options):
        asked = OperatorRequest.of(options)
        hosts = choose_hosts(Inventory(hosts=HOSTS), asked.workers, 2, None)
        places = {"runs": tmp_path / "runs", "packs": tmp_path / "packs", "parameter_cache": tmp_path / "parameters"}
        return script_plan.make_script_plan(Request(asked=asked, hosts=hosts, write=True, **places))

    return planned


@pytest.fixture
def launched(ask, folder, tmp_path):
    """A run that was launched, as `state` says how it ended."""

    def launch(state="FAILED", **options):
        planned = ask(script=str(folder), run="mine", **options)
        run = tmp_path / "runs" / "mine"
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yml").write_text(planned.config_yaml)
        write_json(run / "cluster.json", {"hosts": to_plain(HOSTS[:2]), "script": planned.script})
        write_json(run / "summary.json", {"state": state})
        return run

    return launch


class TestSending:
    def names(self, given, into):
        sent = script_plan.send(str(given), into)
        data = (into / f"script-{sent['sha256'][:16]}.zip").read_bytes()
        assert hashlib.sha256(data).hexdigest() == sent["sha256"]
        return sent["main"], sorted(zipfile.ZipFile(io.BytesIO(data)).namelist())

    def test_a_folder_goes_without_hidden_files_and_bytecode(self, folder, tmp_path):
        assert self.names(folder, tmp_path / "code") == ("main.py", ["data/two words.csv", "main.py"])
        (folder / "other.py").touch()
        assert self.names(folder / "other.py", tmp_path / "code") == ("other.py", ["data/two words.csv", "main.py", "other.py"])

    def test_a_bare_name_goes_alone(self, folder, tmp_path, monkeypatch):
        monkeypatch.chdir(folder)
        assert self.names("main.py", tmp_path / "code") == ("main.py", ["main.py"])

    def test_nothing_is_written_with_check(self, folder, tmp_path):
        script_plan.send(str(folder), None)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]

    @pytest.mark.parametrize("name", ["missing.py", "data", "data/two words.csv"])
    def test_what_is_no_script_is_refused(self, folder, name):
        assert "give FILE.py, FOLDER/FILE.py, or a FOLDER with main.py" in refusal(script_plan.send, str(folder / name), None)

    @pytest.mark.parametrize("target", ["/etc/passwd", "../secret.txt", "missing"])
    def test_a_link_out_of_the_folder_is_refused(self, folder, target):
        (folder.parent / "secret.txt").write_text("secret")
        (folder / "data" / "link").symlink_to(target if target[0] in "/m" else "../../secret.txt")
        assert re.search("data/link is a link out of the folder", refusal(script_plan.send, str(folder), None))

    def test_a_link_to_a_folder_or_a_pipe_is_refused(self, folder):
        (folder / "again").symlink_to(folder / "data")
        assert "again is no regular file" in refusal(script_plan.send, str(folder), None)
        (folder / "again").unlink()
        os.mkfifo(folder / "pipe")
        assert "pipe is no regular file" in refusal(script_plan.send, str(folder), None)

    def test_a_large_folder_is_refused_before_it_is_read(self, folder):
        with (folder / "data" / "large").open("wb") as stream:
            stream.truncate(2**38)
        assert "has more than 200 MB or 5,000 files, and all of it is sent to each host. Fix:" in refusal(
            script_plan.send, str(folder), None
        )


class TestOptions:
    @pytest.mark.parametrize("name", ["model", "config", "dataset", "set", "epochs", "quick", "evaluate", "show_config", "remeasure"])
    def test_options_of_models_are_refused_by_name(self, ask, folder, name):
        assert refusal(ask, script=str(folder), **{name: "x"}).startswith(f"{name}=x: Lockstep starts a script as it is")

    @pytest.mark.parametrize("name", ["args", "outputs"])
    def test_options_of_scripts_need_one(self, name, tmp_path):
        assert (
            refusal(script_plan.is_asked, OperatorRequest.of({name: "x"}), tmp_path)
            == f"{name}=x: it belongs to a script; name one, as in -e script=FILE.py"
        )

    def test_a_models_run_is_not_for_a_script(self, tmp_path):
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "config.yml").write_text("seed: 1\n")
        assert "run=old trains a model and is no script's run" in refusal(
            script_plan.is_asked, OperatorRequest.of({"script": "x.py", "run": "old"}), tmp_path
        )
        assert not script_plan.is_asked(OperatorRequest.of({"run": "old"}), tmp_path)

    @pytest.mark.parametrize("name", ["../x", "a/b", "", "a\0b", "$(touch x)", "{{ 7 * 7 }}", "a\nb", "it's"])
    def test_a_name_that_could_leave_the_folder_is_refused_before_it_is_looked_up(self, name, tmp_path):
        assert "a run name is 1 to 64 of A-Z" in refusal(
            script_plan.is_asked, OperatorRequest.of({"script": "x.py", "run": name}), tmp_path
        )

    def test_arguments_are_split_and_nothing_is_expanded(self):
        assert script_plan.arguments("--lr 0.1 '$(touch x)' $HOME *") == ["--lr", "0.1", "$(touch x)", "$HOME", "*"]
        assert "close the quote" in refusal(script_plan.arguments, "it's")
        assert "NUL" in refusal(script_plan.arguments, "a\0b")

    def test_outputs_stay_in_the_folder_and_can_be_fetched(self):
        assert script_plan.outputs("model.keras, logs/,a/b c.txt") == ["model.keras", "logs", "a/b c.txt"]
        for name in ("../x", "/etc/passwd", ".ssh", "a/../b", "a//b", "", "-rf", "$(x)", "a\nb", "{{ x }}"):
            assert "is relative to the script's folder" in refusal(script_plan.outputs, name)


class TestRunning:
    def test_a_new_run_has_what_was_asked_in_its_configuration(self, ask, folder):
        planned = ask(script=str(folder), args="--lr 0.1", outputs="logs/", workers="3")
        section = yaml.safe_load(planned.config_yaml)["script"]
        assert (section["main"], section["args"], section["outputs"]) == ("main.py", ["--lr", "0.1"], ["logs"])
        assert (planned.resume, planned.complete, planned.script["restarts"]) == (False, False, 0)
        assert planned.run.startswith("mine-")

    def test_a_failed_run_starts_again_as_it_was(self, ask, launched, folder):
        launched(args="--lr 0.1")
        for options in ({}, {"script": str(folder)}, {"args": "--lr 0.1"}):
            planned = ask(run="mine", **options)
            assert (planned.script["args"], planned.script["restarts"], planned.complete) == (["--lr", "0.1"], 1, False)

    def test_another_script_or_other_arguments_are_refused(self, ask, launched, folder):
        launched()
        (folder / "main.py").write_text("print(2)")
        assert "run=mine: this run exists with another script and args." in refusal(ask, run="mine", script=str(folder), args="x")

    def test_a_complete_run_is_complete(self, ask, launched):
        launched("SUCCEEDED")
        assert ask(run="mine").complete

    def test_a_lost_archive_is_noticed(self, ask, launched, tmp_path):
        launched()
        for path in (tmp_path / "code").iterdir():
            path.unlink()
        assert "no longer has the script's archive" in refusal(ask, run="mine")

    def test_commands_about_models_refuse_it(self, launched):
        assert refusal(script_plan.refuse, launched(), "evaluate.yml").startswith(
            "run=mine: it runs a script of yours, and evaluate.yml needs"
        )


def test_a_hosts_command_keeps_every_argument_apart(ask, folder):
    planned = ask(script=str(folder)).script | {"args": EVIL}
    command = script_plan.command(planned, "/srv/runs/mine", "pi2", "/srv/dfs", HOSTS)
    assert command[:-1] == ["-m", "trainer", "script"]
    read = Script.read(json.loads(command[-1]))
    assert read.arguments == EVIL
    assert read.archive == Path("/srv/dfs/code") / planned["archive"]
    assert read.peers == ["10.0.0.1:13345", "10.0.0.2:13345", "10.0.0.3:13345"]


def test_of_hosts_files_only_output_is_fetched():
    allowed = admission.kinds("pi2", None)
    names = [
        "output/a.txt",
        "workers/pi2/output/a/b c.txt",
        "workers/pi2/secret",
        "workers/pi2/script/x",
        "output/../x",
        "workers/pi1/output/x",
    ]
    taken, refused = admission.admit("".join(f"1 1.0 {name}\0" for name in names), allowed, None, 10**9)
    assert [file.name for file in taken] == names[:2]
    assert len(refused) == 4
    assert all(re.fullmatch(admission.STAY, name) for name in names[2:4])


def test_script_succeeds_with_0_or_when_stopped():
    """Only 0 is success for a script and any end is right when it is stopped."""
    assert [of_exit_code(code, script=True) for code in (0, 1, 42, 143)] == ["done", "failed", "failed", "failed"]
    failed = Verdicts([Verdict("pi1", 0, "failed", exit_code=1)])
    assert (failed.run_state(None, True, script=True), failed.run_state(None, True)) == ("CANCELLED", "FAILED")
