"""TLS for GlusterFS: keys that stay on their host, certificates of members only, files of others untouched."""

import json
import os
import shutil
import subprocess
import sys
import time

import lockstep_host as processes
import pytest
from cryptography import x509

from control.provision import findings, host_rules
from control.provision.tasks import settings as provision_settings
from tests.unit.fake_module import Module, ended, failed, load
from tests.unit.refusals import refusal_of_typed
from trainer.common.errors import ConfigError

gluster_tls = load("gluster_tls")
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed here")


def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Host:
    """Where GlusterFS and Lockstep keep their files, with the real openssl."""

    def __init__(self, folder):
        self.folder, self.ssl, self.links = folder, folder / "etc", folder / "usr"
        self.access, self.record = folder / "glusterd" / "secure-access", folder / "lib" / "tls.json"
        self.ssl.mkdir(parents=True)

    def module(self, state, **options):
        places = {"FOLDER": self.ssl, "LINKS": self.links, "ACCESS": self.access, "RECORD": self.record}
        vars(gluster_tls).update({name: str(path) for name, path in places.items()})
        given = {"name": "node1", "volume": "lockstep", "trusted": None}
        return Module({"openssl": run}, state=state, **{**given, **options})

    def certificate(self, **options):
        return ended(gluster_tls, self.module("certificate", **options))

    def trust(self, certificates, **options):
        return ended(gluster_tls, self.module("trusted", trusted=host_rules.dfs_trusted(certificates), **options))["did"]

    def remove(self, **options):
        return ended(gluster_tls, self.module("absent", **options))

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def other(tmp_path):
    """The certificate of another host."""
    return Host(tmp_path / "other").certificate(name="node2")["certificate"]


def test_key_is_made_once_for_root_alone(host):
    first = host.certificate()
    assert first["did"] == ["make a certificate"]
    assert (host.ssl / "glusterfs.key").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in first["certificate"]
    actual = x509.load_pem_x509_certificate(first["certificate"].encode())
    assert actual.subject.rfc4514_string() == "CN=node1"
    assert (actual.not_valid_after_utc - actual.not_valid_before_utc).days == 30 * 365
    assert host.certificate() == {"changed": False, "did": [], "certificate": first["certificate"]}
    assert host.files() == ["etc/glusterfs.key", "etc/glusterfs.pem", "lib/tls.json"]


def lose_the_key(host):
    (host.ssl / "glusterfs.key").unlink()


def show_the_key(host):
    (host.ssl / "glusterfs.key").chmod(0o640)


def take_another_key(host):
    strange = Host(host.folder / "strange")
    strange.certificate()
    shutil.copy2(strange.ssl / "glusterfs.key", host.ssl / "glusterfs.key")


@pytest.mark.parametrize("harm", [lose_the_key, show_the_key, take_another_key])
def test_a_key_that_will_not_do_is_replaced(harm, host):
    first = host.certificate()["certificate"]
    harm(host)
    again = host.certificate()
    assert again["did"] == ["make a certificate"]
    assert again["certificate"] != first
    assert host.certificate()["did"] == []


def test_certificate_is_renewed_in_time_and_when_renamed(host, monkeypatch):
    """A certificate is renewed in its last year and when its host is renamed."""
    host.certificate()
    assert host.certificate(name="node9")["did"] == ["make a certificate"]
    monkeypatch.setattr(gluster_tls, "RENEW_S", 31 * 365 * 86400)
    assert host.certificate(name="node9")["did"] == ["make a certificate"]


@pytest.mark.parametrize("name", ["etc/glusterfs.key", "etc/glusterfs.pem", "usr/glusterfs.ca", "glusterd/secure-access"])
def test_files_of_others_are_refused_and_kept(name, host):
    path = host.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("theirs")
    message = failed(gluster_tls, host.module("certificate"))
    assert f"{path} for GlusterFS's TLS is not Lockstep's, and is not replaced; move it away" in message
    assert host.remove() == {"changed": False, "did": []}
    assert host.files() == [name]


def test_certificate_put_in_place_of_ours_is_kept(host, other):
    mine = host.certificate()["certificate"]
    host.trust({"node1": mine})
    (host.ssl / "glusterfs.pem").write_text(other)
    assert "glusterfs.pem for GlusterFS's TLS is not Lockstep's" in failed(gluster_tls, host.module("certificate"))
    assert "has been replaced since" in host.remove()["show"]
    assert (host.ssl / "glusterfs.pem").read_text() == other
    assert host.access.exists()


def test_a_daemon_with_other_volumes_is_not_closed(host):
    (host.folder / "glusterd" / "vols" / "photos").mkdir(parents=True)
    (host.folder / "glusterd" / "vols" / "lockstep").mkdir()
    message = failed(gluster_tls, host.module("certificate"))
    assert "GlusterFS also serves photos, whose clients have no certificates" in message


def test_only_a_changed_certificate_restarts_daemons(host, other):
    """Members are trusted and only a changed certificate starts daemons anew."""
    mine = host.certificate()["certificate"]
    assert host.trust({"node1": mine}) == ["trust the members' certificates", "switch TLS on"]
    assert (host.links / "glusterfs.ca").read_text() == f"# node1\n{mine}"
    assert host.trust({"node1": mine}) == []

    def again(certificates):
        os.utime(host.access, (1, 1))
        host.trust(certificates)
        return host.access.stat().st_mtime > 1

    assert not again({"node1": mine, "node2": other})
    assert not again({"node1": mine})
    assert not again({"node1": mine, "node2": other})
    renewed = Host(host.folder / "renewed").certificate(name="node2")["certificate"]
    assert again({"node1": mine, "node2": renewed})
    assert not again({"node1": mine, "node2": renewed})


def test_nothing_is_left_and_second_removal_changes_nothing(host):
    host.trust({"node1": host.certificate()["certificate"]})
    assert host.remove()["did"] == ["remove key and certificates"]
    assert host.files() == []
    assert host.remove() == {"changed": False, "did": []}


def test_a_checked_host_is_not_touched(host, other):
    assert host.certificate(check_mode=True) == {"changed": True, "did": ["make a certificate"], "certificate": ""}
    assert host.trust({"node1": "", "node2": other}, check_mode=True) == ["trust the members' certificates", "switch TLS on"]
    assert host.files() == [name for name in host.files() if name.startswith("other")]
    host.trust({"node1": host.certificate()["certificate"]})
    before = host.files()
    assert host.remove(check_mode=True)["changed"] is True
    assert host.files() == before


@pytest.mark.parametrize(("at", "kept"), [("request", []), ("key", ["lib/tls.json"]), ("pem", ["etc/glusterfs.key", "lib/tls.json"])])
def test_interrupted_call_leaves_nothing_that_looks_foreign(at, kept, host, monkeypatch):

    def interrupt(source, target, replace=os.replace):
        if str(target).endswith(at):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(gluster_tls.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            host.certificate()
    assert host.files() == kept
    assert host.certificate()["did"] == ["make a certificate"]
    assert len(json.loads(host.record.read_text())["certificates"]) == (2 if kept else 1)


def signing(folder, name, extra=()):
    """A certificate made by hand."""
    key, pem = folder / "key", folder / "pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
    subprocess.run([*argv, *extra, "-keyout", key, "-out", pem], check=True, capture_output=True)
    return pem.read_text()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder, own: own + own, "node1: what it returned is no certificate of its own"),
        (lambda folder, own: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "is no certificate of its own"),
        (lambda folder, own: "rm -rf /", "is no certificate of its own"),
        (lambda folder, own: signing(folder, "node1"), "its certificate is for 'CN=node1, which signs others'"),
        (lambda folder, own: signing(folder, "*", ("-addext", "basicConstraints=CA:FALSE")), "CN=*"),
    ],
    ids=["two", "broken", "no certificate", "an authority", "everybody"],
)
def test_a_certificate_that_speaks_for_others_is_refused(spoil, message, host):
    own = host.certificate()["certificate"]
    with pytest.raises(ConfigError, match="node1: ") as caught:
        host_rules.dfs_trusted({"node1": spoil(host.folder, own)})
    assert message in str(caught.value)


def test_what_else_host_returns_does_not_reach_others(host):
    own = host.certificate()["certificate"]
    assert host_rules.dfs_trusted({"node1": f"# node2\nanything\n{own}\nmore"}) == f"# node1\n{own}"


@pytest.mark.parametrize("name", ["*", "a,b", "x" * 65, "fe80::1"])
def test_name_that_certificate_cant_have_is_refused(name):
    arguments = {"kind": "glusterfs", "path": "/mnt/x"}
    assert f"{name!r}: a host's name in the inventory is the one in its certificate" in refusal_of_typed(
        provision_settings._check_kind, arguments, [{"name": name, "address": "10.0.0.1"}]
    )
    assert provision_settings._check_kind({**arguments, "kind": "mounted"}, [{"name": name, "address": "10.0.0.1"}]) == "mounted"


def test_nothing_is_mounted_anew_below_a_run():
    def refused(*lines):
        look = findings.Look.of("\n".join(["systemd=yes", *lines]))
        return [one for one in look.refusals("pi1", False, False, True, 0) if "mounted anew" in one]

    (problem,) = refused("session=my-run-w0-abc", "dfs=open")
    assert problem.startswith("pi1: my-run-w0-abc is running there, and the shared folder is to be mounted anew, with TLS")
    assert refused("dfs=open") == refused("session=my-run-w0-abc") == []


def test_process_is_older_than_files_after_its_start(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    os.utime(before, (time.time() - 60, time.time() - 60))
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "lockstep-test-mark"], stdin=subprocess.PIPE)
    try:
        pids = processes.running(lambda words: "lockstep-test-mark" in words)
        os.utime(before, (time.time() - 60, time.time() - 60))
        after.touch()
        os.utime(after, (time.time() + 1, time.time() + 1))
        assert pids == [child.pid]
        assert processes.older(pids, before) == []
        assert processes.older(pids, after) == pids
        assert processes.older(pids, tmp_path / "missing") == []
    finally:
        child.stdin.close()
        child.wait()
    assert processes.older([child.pid], after) == []
