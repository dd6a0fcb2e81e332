"""Sending large files: whole or not at all, continued where an interruption left them."""

import subprocess
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail

from control.remote import upload
from control.remote.upload import Upload


class Cut(Exception):
    """The connection is gone."""


@pytest.fixture
def host(monkeypatch):
    """A host whose connection fails after a given number of writes."""
    monkeypatch.setattr(upload, "CHUNK", 10)
    state = SimpleNamespace(writes=0, cut_after=None, sent=0)

    def execute(command, in_data=None, **options):
        if in_data is not None:
            if state.writes == state.cut_after:
                raise Cut
            state.writes += 1
            state.sent += len(in_data)
        done = subprocess.run(["/bin/sh", "-c", command], input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}

    state._low_level_execute_command = execute
    return state


@pytest.fixture
def packs(tmp_path):
    """Two files to send."""
    folder = tmp_path / "my packs"
    folder.mkdir()
    (folder / "a.pack").write_bytes(bytes(range(25)))
    (folder / "manifest.json").write_bytes(b"{}")
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_arrives_whole_and_tells_its_progress(host, packs, tmp_path):
    progress = []
    Upload(host, lambda done, total: progress.append((done, total))).folder(packs, f"{tmp_path}/dfs path/datasets/d1")
    assert contents(tmp_path / "dfs path" / "datasets" / "d1") == contents(packs)
    assert progress == [(0, 27), (10, 27), (20, 27), (25, 27), (25, 27), (27, 27)]
    assert [path.name for path in (tmp_path / "dfs path" / "datasets").iterdir()] == ["d1"]


def test_an_interrupted_upload_leaves_no_folder_and_continues(host, packs, tmp_path):
    host.cut_after = 2
    there = f"{tmp_path}/datasets/d1"
    with pytest.raises(Cut):
        Upload(host, lambda done, total: None).folder(packs, there)
    assert not (tmp_path / "datasets" / "d1").exists()
    host.cut_after, host.sent = None, 0
    Upload(host, lambda done, total: None).folder(packs, there)
    assert contents(tmp_path / "datasets" / "d1") == contents(packs)
    assert host.sent == 7


def test_bytes_that_got_mixed_up_are_not_taken(host, packs, tmp_path):
    (tmp_path / ".part-code.zip").write_bytes(b"other bytes")
    with pytest.raises(AnsibleActionFail, match=r"code\.zip arrived with a different digest .*\. Fix: run this command again"):
        Upload(host, lambda done, total: None).file(packs / "a.pack", f"{tmp_path}/code.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["my packs"]
    Upload(host, lambda done, total: None).file(packs / "a.pack", f"{tmp_path}/code.zip")
    assert (tmp_path / "code.zip").read_bytes() == bytes(range(25))


def test_longer_file_of_earlier_try_is_replaced(host, packs, tmp_path):
    (tmp_path / ".part-code.zip").write_bytes(b"x" * 100)
    Upload(host, lambda done, total: None).file(packs / "a.pack", f"{tmp_path}/code.zip")
    assert (tmp_path / "code.zip").read_bytes() == bytes(range(25))
    assert not (tmp_path / ".part-code.zip").exists()


def test_a_full_or_foreign_folder_is_named(host, packs, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(AnsibleActionFail, match=r"taken/x failed: .*(exists|Not a directory).*doctor\.yml"):
        Upload(host, lambda done, total: None).file(packs / "a.pack", f"{tmp_path}/taken/x/code.zip")


def test_what_would_not_fit_is_not_sent(host, packs, tmp_path):
    place = tmp_path / "dfs" / "code.zip"
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(2**43)
    with pytest.raises(AnsibleActionFail, match=r"dfs has [\d,]+ MB free and 8,796,093 MB are to be sent there; remove .*dfs_path"):
        Upload(host, lambda done, total: None).file(tmp_path / "large", str(place))
    assert list(place.parent.iterdir()) == []
