"""The shared folder compared with what was published: attacked, it is as it was after the next command, or the command says why not."""

import os
import subprocess

import pytest
from ansible.errors import AnsibleActionFail

from control.remote import shared_folder
from control.remote.published import Published
from control.remote.shared_folder import Item, SharedFolder
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file


class Host:
    """Runs commands here, and keeps them."""

    def __init__(self):
        self.commands = []

    def _low_level_execute_command(self, command, in_data=None, **options):
        self.commands.append(command)
        done = subprocess.run(["/bin/sh", "-c", command], input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """What the control node has published."""
    monkeypatch.setattr(shared_folder, "SEEN", tmp_path / "seen")
    folder = tmp_path / "here" / "a1"
    folder.mkdir(parents=True)
    for number, name in enumerate(("manifest.json", "data-00000.pack", "data-00001.pack", "records.sha256")):
        (folder / name).write_bytes(str(number).encode() * 1000)
    (tmp_path / "here" / "trainer-1.zip").write_bytes(b"code" * 1000)
    return tmp_path / "here"


@pytest.fixture
def items(here, tmp_path):
    there = tmp_path / "the dfs"
    code, manifest = here / "trainer-1.zip", here / "a1" / "manifest.json"
    return (
        Item("the trainer", code, f"{there}/code/trainer-1.zip", sha256_file(code)),
        Item("the dataset", here / "a1", f"{there}/datasets/a1", sha256_file(manifest)),
    )


def agree(items, whole=False):
    folder = SharedFolder(Host(), "node1")
    folder.agree([items[0]], items[1], whole)
    return folder


def same(items):
    for item in items:
        there = {path.name: path.read_bytes() for path in (item.local.iterdir() if item.local.is_dir() else [item.local])}
        for name, data in there.items():
            path = f"{item.remote}/{name}" if item.local.is_dir() else item.remote
            with open(path, "rb") as stream:
                assert stream.read() == data, path
    return True


def test_what_is_missing_is_sent_once(items):
    first = agree(items)
    assert (first.sent, first.replaced, first.warning()) == ([items[1].remote, items[0].remote], [], "")
    assert same(items)
    again = agree(items)
    assert (again.sent, again.replaced) == ([], [])
    assert len(again._action.commands) == 1, "what is right costs one call"


def change(path, data=None, keep_time=False):
    stat = os.stat(path)
    with open(path, "r+b") as stream:
        stream.write(data or b"X")
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("keep_time", [True, False])
@pytest.mark.parametrize(
    "name", ["code/trainer-1.zip", "datasets/a1/manifest.json", "datasets/a1/data-00001.pack", "datasets/a1/records.sha256"]
)
def test_what_was_changed_is_sent_anew_and_said(name, keep_time, items, tmp_path):
    agree(items)
    path = str(tmp_path / "the dfs" / name)
    change(path, keep_time=keep_time)
    folder = agree(items)
    assert (folder.sent, folder.replaced) == ([], [path])
    assert folder.warning().startswith(f"warning: {path}: contents differ from what was published; sent again.")
    assert same(items)
    assert agree(items).replaced == []


def test_what_was_removed_is_sent_anew(items):
    agree(items)
    for name in ("manifest.json", "data-00000.pack"):
        os.unlink(f"{items[1].remote}/{name}")
        assert agree(items).sent == [f"{items[1].remote}/{name}"]
        assert same(items)


def test_dataset_that_was_never_compared_is_read_once(items, tmp_path):
    """As one that another control node, or an earlier version, sent."""
    agree(items)
    for path in (tmp_path / "seen").iterdir():
        path.unlink()
    change(f"{items[1].remote}/data-00001.pack")
    assert agree(items).replaced == [f"{items[1].remote}/data-00001.pack"]
    for path in (tmp_path / "seen").iterdir():
        path.unlink()
    assert len(agree(items)._action.commands) == 2
    assert len(agree(items)._action.commands) == 1


def test_the_whole_is_compared_where_that_is_asked(items, tmp_path):
    """A disk that changes bytes by itself changes no times."""
    agree(items)
    change(f"{items[1].remote}/data-00001.pack")
    (seen,) = (tmp_path / "seen").iterdir()
    folder = SharedFolder(Host(), "node1")
    shared_folder.write_json(seen, folder._look([], items[1].parts())[1])
    assert agree(items).replaced == []
    assert agree(items, whole=True).replaced == [f"{items[1].remote}/data-00001.pack"]
    assert same(items)


def test_link_is_replaced_and_its_target_stays(items, tmp_path):
    agree(items)
    target = tmp_path / "mine"
    target.write_bytes(b"mine")
    for place in (items[0].remote, items[0].remote.replace("trainer-1", ".part-trainer-1")):
        if os.path.exists(place):
            os.unlink(place)
        os.symlink(target, place)
    agree(items)
    assert target.read_bytes() == b"mine"
    assert not os.path.islink(items[0].remote)
    assert same(items)


def test_wrong_there_and_gone_here_is_named(items, here):
    agree(items)
    (here / "trainer-1.zip").unlink()
    assert agree(items).replaced == [], "what is right there is not needed here"
    change(items[0].remote)
    with pytest.raises(AnsibleActionFail, match=r"1\.zip has SHA-256 .*, and .* was published, and this machine's own copy .*Fix: "):
        agree(items)


def test_records_of_run_say_what_was_published(tmp_path):
    packs = tmp_path / "published" / "datasets"
    run = {"run": "r", "code": "trainer-1.zip", "code_sha256": "c" * 64}
    dataset = {"digest": "d" * 64, "folder_name": "m" * 16, "manifest": "m" * 64}
    actual = Published.launched({**run, "dataset": dataset}, packs)
    assert (actual.code_sha256, actual.manifest, actual.folder, actual.name) == ("c" * 64, "m" * 64, str(packs / ("m" * 16)), "m" * 16)
    assert actual.code == str(tmp_path / "published" / "code" / "trainer-1.zip")


def test_run_without_digests_is_as_good_as_ours(tmp_path):
    """A run of a version without digests is as good as this machines copy."""
    packs = tmp_path / "published" / "datasets"
    run = {"run": "r", "code": "trainer-1.zip", "dataset": {"digest": "d" * 64, "folder_name": "d" * 16}}
    with pytest.raises(LockstepError, match=r"run=r: an earlier version launched it .*Fix: .*train\.yml -e run=r"):
        Published.launched(run, packs)
    code = tmp_path / "published" / "code" / "trainer-1.zip"
    code.parent.mkdir(parents=True)
    code.write_bytes(b"old")
    actual = Published.launched(run, packs)
    assert (actual.code_sha256, actual.manifest) == (sha256_file(code), "")


@pytest.mark.parametrize(
    "answer", ["x", "sum", "sum a b", "evil a b", "stamp 1;id /a", "sum \x1b[2J /a", "__class__ 1 /a", "sum " + "x" * 99_999]
)
def test_what_is_no_answer_of_host_is_refused(answer, items):
    host = Host()
    host._low_level_execute_command = lambda *_, **options: {"rc": 0, "stdout": answer, "stderr": ""}
    with pytest.raises(AnsibleActionFail, match="node1: looking at the shared folder: it answers") as caught:
        SharedFolder(host, "node1").agree([items[0]], items[1])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
