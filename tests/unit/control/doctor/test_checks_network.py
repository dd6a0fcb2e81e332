"""The doctor's lines: every trouble between hosts, with its exact message."""

import pytest

from control.doctor.checks import network as checks
from control.doctor.checks.model import FAIL
from control.doctor.checks.network import between
from tests.unit.doctor_samples import NAMES, change_pairs, doctor, inventory, network_of, setting, unreachable

SET_CLOCK = "on node02: sudo timedatectl set-ntp true"


@pytest.mark.parametrize(
    ("kind", "error", "fix"),
    [
        ("timeout", "timed out", "a firewall drops it, or the address is wrong: open TCP port 12345 of node03 for all workers"),
        (
            "refused",
            "Connection refused",
            "on node03: a firewall that rejects? sudo nft list ruleset; the port must be open for all workers",
        ),
        (
            "stranger",
            "something else listens there",
            "on node03: sudo ss -ltnp 'sport = :12345' shows the program; end it, or set another worker_port",
        ),
        ("wrong_host", "node04 answers there", "two hosts have one address: give each a worker_address of its own"),
    ],
)
def test_a_host_that_nobody_reaches_is_named_once(kind, error, fix):
    network = change_pairs(network_of(), unreachable(kind, error), lambda here, there: there == "node03")
    assert doctor(network=network) == [
        f"[FAIL] node03  reach  node03 (10.0.0.3:12345) can't be reached from any host: {error} (limit: reachable). Fix: {fix}"
    ]


def pair(here, there):
    return (here, there) == ("node01", "node02")


@pytest.mark.parametrize(
    ("change", "where", "line"),
    [
        (
            unreachable("stranger", "something else listens there") | {"port": 13345},
            lambda here, there: there == "node03",
            "[FAIL] node03  reach  node03 (10.0.0.3:13345) can't be reached from any host: something else listens there (limit: "
            "reachable). Fix: on node03: sudo ss -ltnp 'sport = :13345' shows the program; end it, or set another worker_direct_port",
        ),
        (
            unreachable("no_route", "No route to host"),
            lambda here, there: (here, there) == ("node01", "node03"),
            "[FAIL] node01  reach  node03 (10.0.0.3:12345) can't be reached from node01: No route to host (limit: reachable). "
            "Fix: is node03 on, and in the same network? On node01: ip route get 10.0.0.3",
        ),
        (
            {"mbit_s": 200.0},
            lambda here, there: (here, there) == ("node02", "node05"),
            "[WARN] node02  bandwidth  to node05 200 Mbit/s, good links 940 Mbit/s (limit: at least 470 Mbit/s). "
            "Fix: look at the cable and switch port of node02 and node05: sudo ethtool INTERFACE | grep Speed",
        ),
        (
            {"rtt_ms": 12.0},
            lambda here, there: "node05" in (here, there),
            "[WARN] node05  delay  all links of node05 are slow: 12.0 ms, good ones 0.3 ms (limit: at most 5.0 ms). "
            "Fix: Wi-Fi, or a port that saves power: connect node05 by cable to the others' switch",
        ),
        (
            {"rtt_ms": 31.0, "rtt_min_ms": 29.5},
            pair,
            "[WARN] node01  delay  to node02 31.0 ms, good links 0.3 ms (limit: at most 5.0 ms). "
            "Fix: a network far away, or a VPN: even the fastest answer took that long; use hosts on one switch",
        ),
        (
            {"mtu_trouble": True, "mbit_s": None},
            lambda here, there: "node04" in (here, there),
            "[FAIL] node04  mtu  on all links of node04 small packets pass and large ones are lost (limit: all sizes pass). "
            "Fix: set the smallest MTU of the path on all hosts (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through",
        ),
        (
            {"mtu_trouble": True, "mbit_s": None},
            pair,
            "[FAIL] node01  mtu  to node02 small packets pass and large ones are lost (MTU here 1500) (limit: all sizes pass). "
            "Fix: set the smallest MTU of the path on node01 and node02 (sudo ip link set dev INTERFACE mtu 1400), or let ICMP through",
        ),
        (
            {"mtu": 9000},
            lambda here, there: here == "node04",
            "[WARN] node04  mtu  9000, the others 1500 (limit: 1500). "
            "Fix: on node04: sudo ip link set dev INTERFACE mtu 1500, and the same on the switch",
        ),
        (
            {"error": "lost while measuring: timed out"},
            pair,
            "[WARN] node01  network  to node02: lost while measuring: timed out. "
            "Fix: run the doctor again; if it stays, look at the cables between node01 and node02, if there are any",
        ),
    ],
    ids=["direct port", "no route", "slow pair", "distant host", "far network", "host of lost packets", "lost packets", "mtu", "lost link"],
)
def test_trouble_of_links_is_one_line(change, where, line):
    assert doctor(network=change_pairs(network_of(), change, where)) == [line]


def test_of_several_reasons_the_most_telling_is_shown():
    network = change_pairs(network_of(), unreachable("timeout", "timed out"), lambda here, there: there == "node03")
    network["node02"]["pairs"]["node03"] = unreachable("no_route", "No route to host")
    assert doctor(network=network) == [
        "[FAIL] node03  reach  node03 (10.0.0.3:12345) can't be reached from any host: No route to host (limit: reachable). "
        "Fix: is node03 on, and in the same network? On node02: ip route get 10.0.0.3"
    ]


def test_a_busy_port_is_told_once():
    network = change_pairs(network_of(), unreachable("stranger", "something else"), lambda here, there: there == "node03")
    network["node03"]["listening"] = "port 12345: Address already in use"
    assert doctor(network=network) == [
        "[FAIL] node03  listen  could not listen: port 12345: Address already in use (limit: free). "
        "Fix: end the program that holds it, or set another worker_port or worker_direct_port"
    ]


@pytest.mark.parametrize("names", [NAMES, NAMES[:4], NAMES[:3]])
def test_slow_host_is_named_and_not_its_links(names):
    network = change_pairs(network_of(names), {"mbit_s": 94.0}, lambda here, there: "node03" in (here, there))
    assert doctor(network=network, hosts=inventory(names)) == [
        "[WARN] node03  bandwidth  all links of node03 are slow: 94 Mbit/s, good ones 940 Mbit/s (limit: at least 470 Mbit/s). "
        "Fix: look at the cable and switch port of node03: sudo ethtool INTERFACE | grep Speed"
    ]


def test_all_links_slow():
    assert doctor(network=network_of(mbit_s=20.0)) == [
        "[WARN] all  bandwidth  every link is slow (median 20 Mbit/s) (limit: at least 50 Mbit/s). "
        "Fix: look at the cable and switch port of every host: sudo ethtool INTERFACE | grep Speed"
    ]


def test_delay_of_a_busy_host_spares_its_cable():
    network = change_pairs(network_of(), {"rtt_ms": 7.4, "rtt_min_ms": 0.4}, lambda here, there: "node05" in (here, there))
    lines = [line for line in doctor(setting("node05", "load", 7.9), network=network) if "delay" in line]
    assert lines == [
        "[WARN] node05  delay  all links of node05 are slow: 7.4 ms, good ones 0.3 ms (limit: at most 5.0 ms). "
        "Fix: busy: node05 (load 7.9 on 4 cores); end what else runs there and run the doctor again. "
        "If it stays: Wi-Fi, or a port that saves power: connect node05 by cable to the others' switch"
    ]


def test_a_shared_uplink_shows_in_the_ring():
    network = network_of()
    network["node02"]["ring"]["mbit_s"] = 300.0
    assert doctor(network=network) == [
        "[WARN] node02  ring  300 Mbit/s to node03 while all send at once, 940 Mbit/s alone (limit: at least 470 Mbit/s). "
        "Fix: a switch, an uplink or a processor is shared: give every host its own port on one switch"
    ]


def test_slow_host_is_not_blamed_for_the_ring():
    """A host that is slow anyway is not blamed for the ring as well."""
    network = change_pairs(network_of(), {"mbit_s": 94.0}, lambda here, there: "node03" in (here, there))
    network["node02"]["ring"]["mbit_s"] = network["node03"]["ring"]["mbit_s"] = 90.0
    assert [line.split()[2] for line in doctor(network=network)] == ["bandwidth"]


def test_unreachable_host_shows_how_many_others_are_reached():
    network = change_pairs(network_of(), unreachable("timeout", "timed out"), lambda here, there: there == "node03")
    actual = between(inventory(), network, {})
    assert "reaches 3 of 4 others, 0.3 ms, 940 Mbit/s" in [check.value for check in actual if check.host == "node01"]
    assert [check.value for check in actual if check.level == FAIL] == ["node03 (10.0.0.3:12345) can't be reached from any host: timed out"]


def off_by_three(network):
    change_pairs(network, {"clock_s": -3.0}, lambda here, there: here == "node02")
    return change_pairs(network, {"clock_s": 3.0}, lambda here, there: there == "node02")


def test_unjudged_clock_is_compared_between_hosts():
    """Hosts see a clock that the control node cannot judge."""

    def change(facts):
        for actual in facts.values():
            actual["after"] = 1010.0

    assert doctor(change, network=off_by_three(network_of())) == [
        f"[WARN] node02  clock  3.0 s ahead of the other hosts (limit: 1 s). Fix: {SET_CLOCK}"
    ]


def test_a_wrong_clock_is_told_once():
    lines = doctor(setting("node02", "time", 1003.6), network=off_by_three(network_of()))
    assert lines == [f"[WARN] node02  clock  3.0 s ahead (limit: 1 s). Fix: {SET_CLOCK}"]


def test_a_host_without_network_results():
    network = network_of()
    network["node05"] = {"unreachable": "gone"}
    assert doctor(network=network) == []


def test_links_inside_one_machine_are_not_judged():
    pairs = {name: {other: {"reachable": True, "rtt_ms": 9.0, "mbit_s": 5.0} for other in NAMES if other != name} for name in NAMES}
    network = {name: {"pairs": actual, "ring": {"to": NAMES[0], "mbit_s": 0.1}} for name, actual in pairs.items()}
    here = [{**host, "address": "127.0.0.1"} for host in inventory()]
    assert not [check for check in between(here, network, {}) if check.fix]
    assert any("cable" in check.fix for check in between(inventory(), network, {})), "hosts of their own still are"


@pytest.mark.parametrize(("hosts", "culprits"), [("ab", []), ("abc", []), ("abcd", ["a"])])
def test_two_bad_links_blame_no_host(hosts, culprits):
    """Of two or three hosts, either end may be the cause."""
    measured = [(here, there) for here in hosts for there in hosts if here < there]
    bad = {link for link in measured if "a" in link}
    assert checks._blamed(measured, bad) == (culprits, [] if culprits else sorted(bad))
