"""The secret of a launch: the same for its hosts, another for the next, from a key that nobody else can read."""

import threading
from types import SimpleNamespace

import pytest

from control.remote import modules
from control.runs.hosts import launch_secret
from tests.unit.conftest import ROOT, load_file
from trainer.common.errors import LockstepError


@pytest.fixture
def key(tmp_path, monkeypatch):
    """Where the key is."""
    monkeypatch.setattr(launch_secret, "KEY", tmp_path / ".lockstep" / "key")
    return launch_secret.KEY


def test_hosts_of_a_launch_share_one_secret(key):
    first = launch_secret.of_launch("one")
    assert launch_secret.of_launch("one") == first != launch_secret.of_launch("two")
    assert len(bytes.fromhex(first)) == 32
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o750)
    assert [path.name for path in key.parent.iterdir()] == ["key"]


def test_hosts_that_begin_at_once_have_one_secret(key):
    barrier, seen = threading.Barrier(8), set()

    def ask():
        barrier.wait()
        seen.add(launch_secret.of_launch("one"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1


@pytest.mark.parametrize("spoil", ["readable", "link", "foreign"])
def test_a_key_that_others_could_know_is_replaced(spoil, key, tmp_path, monkeypatch):
    before = launch_secret.of_launch("one")
    if spoil == "readable":
        key.chmod(0o640)
    elif spoil == "link":
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    else:
        closed = [False, True]
        monkeypatch.setattr(launch_secret, "_closed", lambda _: closed.pop(0))
    assert launch_secret.of_launch("one") != before
    assert not key.is_symlink()
    assert key.stat().st_mode & 0o777 == 0o600


def test_what_is_no_key_is_refused(key):
    launch_secret.of_launch("one")
    key.write_bytes(b"short")
    with pytest.raises(LockstepError, match=r"key: 5 bytes; a key has 32\. Fix: remove it"):
        launch_secret.of_launch("one")


def test_only_what_is_sent_to_host_holds_secret(key, monkeypatch):
    """Ansible logs a task's arguments and result; it sees neither the secret nor where it comes from."""
    sent = []
    monkeypatch.setattr(modules, "execute", lambda action, module, arguments, check: sent.append(arguments) or {"changed": True})
    given = {"root": "/r", "launch": "one", "files": [{"path": "/r/a", "content": "b"}, {"path": "/r/secret", "secret": True}]}
    plugin = load_file(ROOT / "plugins" / "action" / "worker_claim.py", "action_worker_claim").ActionModule
    action = SimpleNamespace(_task=SimpleNamespace(check_mode=False))
    assert plugin.act(action, **given) == {"changed": True}
    secret = launch_secret.of_launch("one")
    assert sent[0]["files"] == [{"path": "/r/a", "content": "b"}, {"path": "/r/secret", "content": secret, "mode": "0600"}]
    assert secret not in str(given)
