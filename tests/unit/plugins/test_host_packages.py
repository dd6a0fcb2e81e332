"""Packages on a host: only what provisioning installed is ever removed."""

import json

import pytest

from tests.unit.fake_module import Module, ended, failed, load

host_packages = load("host_packages")
NEEDS = {"tmux": {"tmux", "libevent"}, "byobu": {"byobu"}, "nftables": {"nftables", "libnftables"}}


class Killed(Exception):
    """The connection broke while apt was at work."""


class Apt:
    """A host's packages; `needs` says what comes along."""

    def __init__(self, *installed):
        self.installed, self.dependents, self.kill, self.broken = set(installed), {}, False, None

    def module(self, record, packages=(), **options):
        answers = {
            "dpkg-query": lambda argv: (0, "".join(f"{name} installed\n" for name in sorted(self.installed)) + "gone config-files\n", ""),
            "apt-get -q -y": self.change,
            "apt-get -s purge": lambda argv: (0, "".join(f"Purg {name} [1.0]\n" for name in self.going(argv[3:])), ""),
        }
        return Module(
            answers, packages=list(packages), record=str(record), leftovers={}, state="present" if packages else "absent", **options
        )

    def going(self, names):
        return set(names).union(*(self.dependents.get(name, set()) & self.installed for name in names))

    def change(self, argv):
        if self.broken:
            return 100, "Reading package lists...\n", self.broken
        if "install" in argv:
            self.installed |= set().union(*(NEEDS[name] for name in argv[argv.index("install") + 1 :]))
        else:
            self.installed -= self.going(argv[argv.index("purge") + 1 :])
        if self.kill:
            raise Killed
        return 0, "", ""


@pytest.fixture
def record(tmp_path):
    return tmp_path / "lib" / "packages.json"


def present(apt, record, *packages, **options):
    return ended(host_packages, apt.module(record, packages, **options))


def absent(apt, record, **options):
    return ended(host_packages, apt.module(record, **options))


def recorded(record):
    return json.loads(record.read_text())


def test_what_came_along_is_recorded_once(record):
    apt = Apt("bash", "libnftables")
    made = present(apt, record, "tmux", "nftables", "bash")
    assert made["installed"] == ["libevent", "nftables", "tmux"]
    assert recorded(record) == {"installed": ["libevent", "nftables", "tmux"]}
    assert present(apt, record, "tmux", "nftables") == {"changed": False, "installed": []}
    assert present(apt, record, "nftables", "byobu")["installed"] == ["byobu"]
    assert recorded(record) == {"installed": ["byobu", "libevent", "nftables", "tmux"]}


def test_package_that_was_there_before_is_never_removed(record):
    apt = Apt("bash", "tmux", "libevent")
    present(apt, record, "tmux", "nftables")
    assert absent(apt, record) == {"changed": True, "removed": ["libnftables", "nftables"], "kept": []}
    assert apt.installed == {"bash", "tmux", "libevent"}
    assert not record.parent.exists()
    assert absent(apt, record) == {"changed": False, "removed": [], "kept": []}


def test_what_others_need_by_now_stays(record):
    apt = Apt("bash")
    present(apt, record, "tmux", "nftables")
    apt.installed.add("byobu")
    apt.dependents = {"tmux": {"byobu"}, "libevent": {"byobu"}}
    assert absent(apt, record) == {"changed": True, "removed": ["libnftables", "nftables"], "kept": ["libevent", "tmux"]}
    assert apt.installed == {"bash", "byobu", "tmux", "libevent"}


def test_killed_installation_is_recorded_by_the_next(record):
    apt = Apt("bash")
    apt.kill = True
    module = apt.module(record, ["tmux"])
    with pytest.raises(Killed):
        ended(host_packages, module)
    apt.kill = False
    module = apt.module(record, ["tmux"])
    assert ended(host_packages, module)["installed"] == ["libevent", "tmux"]
    assert "dpkg --configure -a" in module.ran
    assert recorded(record) == {"installed": ["libevent", "tmux"]}


def test_what_a_killed_installation_had_done_is_removed(record):
    apt = Apt("nano")
    apt.kill = True
    with pytest.raises(Killed):
        present(apt, record, "tmux")
    apt.kill = False
    assert absent(apt, record, check_mode=True)["removed"] == absent(apt, record)["removed"] == ["libevent", "tmux"]
    assert apt.installed == {"nano"}
    assert not record.exists()


def test_a_checked_run_touches_nothing(record):
    apt = Apt("bash")
    assert present(apt, record, "tmux", check_mode=True) == {"changed": True, "installed": ["tmux"]}
    assert (apt.installed, record.parent.exists()) == ({"bash"}, False)
    present(apt, record, "tmux")
    assert absent(apt, record, check_mode=True)["removed"] == ["libevent", "tmux"]
    assert "tmux" in apt.installed


def test_what_apt_said_is_shown_with_the_mend(record):
    apt = Apt("bash")
    apt.broken = "E: Unable to locate package tmux\n"
    message = failed(host_packages, apt.module(record, ["tmux"]))
    assert "ended with exit code 100: E: Unable to locate package tmux. Fix that on the host" in message
    assert message.endswith("then run provision.yml again.")


def test_leftovers_of_removed_packages_go(record, tmp_path):
    apt, logs = Apt("bash"), tmp_path / "log"
    present(apt, record, "tmux")
    logs.mkdir()
    (logs / "a.log").touch()
    module = apt.module(record)
    module.params["leftovers"] = {"tmux": [str(logs), str(tmp_path / "absent")], "nftables": [str(tmp_path)]}
    assert ended(host_packages, module)["changed"] is True
    assert not logs.exists()
    assert tmp_path.exists()
