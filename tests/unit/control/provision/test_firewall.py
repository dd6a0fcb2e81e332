"""The firewall: rules for members only, loaded when they differ, removed without a trace."""

import shutil
import subprocess

import pytest

from control.common.task import Task
from control.provision import host_rules
from control.provision.tasks import settings
from tests.unit.fake_module import Module, ended, failed, load

firewall_table = load("firewall_table")
HOSTS = [{"name": f"pi{number}", "address": f"10.0.0.{number}", "port": port} for number, port in ((1, 12345), (2, 12346), (3, 12345))]


def ports_of(hosts, kind):
    """What only members may reach."""
    plan = {"members": hosts, "kind": kind, "state": "present", "firewall": True, "addresses": []}
    return settings.firewall(Task({"plan": plan, "allow": [], "users": []}))["ansible_facts"]["provision"]["ports"]


def rules(addresses=("10.0.0.1", "10.0.0.2", "fe80::1"), users=()):
    plan = {"allowed": addresses, "ports": ports_of(HOSTS, "glusterfs")}
    return host_rules.firewall_rules(plan, "lockstep", users)


def test_every_worker_and_glusterfs_port_is_opened():
    ports = ["12345", "12346", "12845", "12846"]
    assert ports_of(HOSTS, "mounted") == ports, "also those of parameter servers, which any of them may get"
    assert ports_of(HOSTS, "glusterfs") == [*ports, "24007-24008", "49152-49251"]


def test_direct_ports_are_closed_to_strangers_too():
    hosts = [{**host, "direct_port": host["port"] + 1000} for host in HOSTS]
    ports = ports_of(hosts, "mounted")
    assert ports == ["12345", "12346", "12845", "12846", "13345", "13346"]
    text = host_rules.firewall_rules({"allowed": ["10.0.0.1"], "ports": ports}, "lockstep", [])
    assert "dport { 12345, 12346, 12845, 12846, 13345, 13346 } jump" in text


def test_port_without_room_is_closed_alone():
    """A port that leaves no room for a server is closed alone."""
    assert ports_of([{"name": "pi1", "address": "10.0.0.1", "port": 65300}], "mounted") == ["65300"]


def test_only_our_table_is_replaced_and_members_pass():
    text = rules()
    assert text.count("table inet") == 3
    assert text.count("policy accept") == 2
    assert "flush ruleset" not in text
    assert "elements = { 10.0.0.1, 10.0.0.2 }" in text
    assert "elements = { fe80::1 }" in text
    assert "tcp dport { 12345, 12346, 12845, 12846, 24007-24008, 49152-49251 } jump strangers" in text


def test_local_users_are_judged_by_number_everywhere():
    """Local users are judged by their number wherever they connect in the cluster."""
    text = rules(users=["1000", 1007])
    assert "tcp dport { 12345, 12346, 12845, 12846, 24007-24008, 49152-49251 } jump other_users" in text
    users = text.partition("chain other_users")[2].splitlines()[1:5]
    assert [line.strip() for line in users] == [
        "meta skuid { 0, 1000, 1007 } return",
        'oif "lo" counter reject with tcp reset',
        "ip daddr @members4 counter reject with tcp reset",
        "ip6 daddr @members6 counter reject with tcp reset",
    ]
    assert "meta skuid { 0 } return" in rules(users=["0"])


def test_host_order_does_not_matter_and_networks_stay():
    assert rules(["10.0.0.2", "10.0.0.1", "10.0.0.1"]) == rules(["10.0.0.1", "10.0.0.2"])
    assert "elements = { 10.0.0.0/24 }" in rules(["10.0.0.0/24"])


@pytest.mark.skipif(shutil.which("nft") is None, reason="nftables is not installed here")
@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["10.0.0.1", "fe80::1", "10.0.0.0/24"], []])
def test_nft_takes_the_rules(addresses, tmp_path):
    path = tmp_path / "rules.nft"
    path.write_text(rules(addresses))
    done = subprocess.run([shutil.which("nft"), "-c", "-f", path], capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("nft needs root to check rules")
    assert (done.returncode, done.stderr) == (0, "")


class Kernel:
    """nft and systemctl, as far as the module sees them."""

    def __init__(self):
        self.table, self.enabled, self.takes = None, False, True

    def module(self, folder, text=None, state="present", **options):
        answers = {
            "/usr/bin/nft -c -f": lambda argv: (0, "", "") if self.takes else (1, "", "syntax error\n"),
            "/usr/bin/nft -f": self.load,
            "/usr/bin/nft -s list": lambda argv: (0, self.table, "") if self.table else (1, "", "No such file"),
            "/usr/bin/nft delete": self.delete,
            "systemctl is-enabled": lambda argv: (0 if self.enabled else 1, "", ""),
            "systemctl enable": lambda argv: self.enable(True),
            "systemctl disable": lambda argv: self.enable(False),
        }
        places = {
            "RULES": "etc/firewall.nft",
            "LOADED": "etc/firewall.loaded",
            "RESERVED": "reserved",
            "SYSCTL": "sysctl.conf",
            "UNIT": "unit",
        }
        vars(firewall_table).update({name: str(folder / path) for name, path in places.items()})
        return Module(answers, rules=text, table="lockstep", state=state, **{"ports": [], **options})

    def load(self, argv):
        with open(argv[-1], encoding="utf-8") as stream:
            self.table = f"as loaded: {stream.read()}"
        return 0, "", ""

    def delete(self, argv):
        self.table = None
        return 0, "", ""

    def enable(self, wanted):
        self.enabled = wanted
        return 0, "", ""


@pytest.fixture
def kernel():
    return Kernel()


def present(kernel, folder, text, **options):
    return ended(firewall_table, kernel.module(folder, text, **options))


def absent(kernel, folder, **options):
    return ended(firewall_table, kernel.module(folder, state="absent", **options))


def test_rules_are_loaded_once(kernel, tmp_path):
    assert present(kernel, tmp_path, "a") == {"changed": True, "did": ["write the rules", "load them at boot", "load the rules"]}
    assert (kernel.table, kernel.enabled) == ("as loaded: a", True)
    assert present(kernel, tmp_path, "a") == {"changed": False, "did": []}
    assert present(kernel, tmp_path, "b")["did"] == ["write the rules", "load the rules"]
    assert kernel.table == "as loaded: b"


@pytest.mark.parametrize("now", [None, "with a hole"])
def test_changed_or_flushed_table_is_loaded_again(now, kernel, tmp_path):
    present(kernel, tmp_path, "a")
    kernel.table = now
    assert present(kernel, tmp_path, "a")["did"] == ["load the rules"]
    assert kernel.table == "as loaded: a"


def test_ports_are_reserved_beside_others_and_released(kernel, tmp_path):
    reserved = tmp_path / "reserved"
    reserved.write_text("8080,9148-9150\n")
    ports = ["12345", "49152-49154"]
    assert "reserve the ports" in present(kernel, tmp_path, "a", ports=ports)["did"]
    assert reserved.read_text() == "8080,9148-9150,12345,49152-49154\n"
    assert (tmp_path / "sysctl.conf").read_text().endswith("net.ipv4.ip_local_reserved_ports = 8080,9148-9150,12345,49152-49154\n")
    assert present(kernel, tmp_path, "a", ports=ports)["did"] == []
    assert present(kernel, tmp_path, "a", ports=["49153-49155"])["did"] == ["reserve the ports", "load the rules"]
    assert reserved.read_text() == "8080,9148-9150,49153-49155\n"
    reserved.write_text("8080\n")
    assert present(kernel, tmp_path, "a", ports=["49153-49155"])["did"][0] == "reserve the ports"
    assert "release the ports" in absent(kernel, tmp_path)["did"]
    assert reserved.read_text() == "8080\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reserved"]


def test_a_checked_run_touches_nothing(kernel, tmp_path):
    assert present(kernel, tmp_path, "a", check_mode=True)["changed"] is True
    assert (kernel.table, list(tmp_path.iterdir())) == (None, [])
    present(kernel, tmp_path, "a")
    assert absent(kernel, tmp_path, check_mode=True)["changed"] is True
    assert kernel.table == "as loaded: a"


def test_rules_that_nft_does_not_take_replace_nothing(kernel, tmp_path):
    present(kernel, tmp_path, "a")
    kernel.takes = False
    message = failed(firewall_table, kernel.module(tmp_path, "b"))
    assert "nftables rejects the rules: syntax error. The kernel may lack nf_tables" in message
    assert message.endswith("without a firewall: -e firewall=false")
    assert (kernel.table, (tmp_path / "etc" / "firewall.nft").read_text()) == ("as loaded: a", "a")


def test_nothing_is_left_and_second_removal_changes_nothing(kernel, tmp_path):
    present(kernel, tmp_path, "a")
    assert absent(kernel, tmp_path) == {"changed": True, "did": ["remove the unit", "remove the table", "remove the rules"]}
    assert (kernel.table, kernel.enabled, list(tmp_path.iterdir())) == (None, False, [])
    assert absent(kernel, tmp_path) == {"changed": False, "did": []}


def test_without_nft_the_mend_is_named(kernel, tmp_path):
    module = kernel.module(tmp_path, "a", programs=[])
    assert failed(firewall_table, module).endswith("nft is missing; install it: sudo apt-get install nftables")
