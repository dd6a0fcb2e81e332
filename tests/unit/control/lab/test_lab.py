"""The lab's pure functions: settings, nodes, what has to change, package archives, limits."""

import pytest

from control.lab import lab_inventory
from tests.unit.refusals import refusal_of_typed as refusal

MINE, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
LIMITS = [10_000, 3_800, 3 * 2**30]


def container(name, owner=MINE, running=True, limits=LIMITS, never_ran=False, cut_off=False):
    labels = {lab_inventory.OWNER_LABEL: owner, lab_inventory.PROJECT_LABEL: f"/home/{owner[0]}/lockstep"}
    state = {"running": running, "never_ran": never_ran, "cut_off": cut_off}
    return {"container": name, "labels": labels, "limits": limits, "image": "i", **state}


def network(name, subnet, owner=None):
    labels = {lab_inventory.OWNER_LABEL: owner, lab_inventory.PROJECT_LABEL: f"/home/{owner[0]}/lockstep"} if owner else {}
    return {"name": name, "labels": labels, "subnets": [subnet]}


def test_settings_without_any_option():
    assert lab_inventory.settings({}, 2) == {
        "nodes": 5,
        "cpus": [0.38] * 5,
        "memory": 3 * 2**30,
        "link": "none",
        "state": "present",
        "image": "present",
    }


@pytest.mark.parametrize(("nodes", "cores", "share"), [(5, 2, 0.38), (3, 2, 0.63), (1, 2, 1.9), (5, 16, 3.04), (40, 2, 0.1)])
def test_default_share_divides_machine_and_leaves_little(nodes, cores, share):
    assert lab_inventory._default_share(nodes, cores) == share


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": "0"}, "nodes=0: expected a whole number from 1"),
        ({"nodes": "three"}, "nodes=three: expected a whole number from 1"),
        ({"nodes": "2.5"}, "nodes=2.5: expected a whole number from 1"),
        ({"cpus": "3"}, "cpus=3: it must lie between 0.1 and this machine's 2 cores, as in -e cpus=0.38"),
        ({"cpus": "0.01"}, "cpus=0.01: it must lie between 0.1 and this machine's 2 cores, as in -e cpus=0.38"),
        ({"cpus": "half"}, "cpus=half: it must lie between 0.1 and this machine's 2 cores, as in -e cpus=0.38"),
        ({"cpus": "nan"}, "cpus=nan: it must lie between 0.1 and this machine's 2 cores, as in -e cpus=0.38"),
        ({"cpus": "0.3,0.2"}, "cpus=0.3,0.2: 2 shares for 5 nodes; give one for all, as in -e cpus=0.38, or one for each"),
        ({"cpus": "0.3,0.2,", "nodes": 3}, "cpus=0.3,0.2,: it must lie between 0.1 and this machine's 2 cores, as in -e cpus=0.38"),
        ({"memory": "3gb"}, "memory=3gb: it must be a number with k, m or g, at least 256m, as in -e memory=3g"),
        ({"memory": "100m"}, "memory=100m: it must be a number with k, m or g, at least 256m, as in -e memory=3g"),
        ({"link": "1gbyte"}, "link=1gbyte: it must be none or a rate in bits per second, as in -e link=1gbit or link=100mbit"),
        ({"link": "0mbit"}, "link=0mbit: it must be none or a rate in bits per second, as in -e link=1gbit or link=100mbit"),
        ({"state": "gone"}, "state=gone: expected present or absent"),
        (
            {"image": "absent"},
            "image=absent: it belongs to the removal of the lab; ansible-playbook lab.yml -e state=absent -e image=absent",
        ),
    ],
)
def test_refused_settings(options, message):
    assert refusal(lab_inventory.settings, options, 2) == message


def test_each_node_may_have_share_of_its_own():
    assert lab_inventory.settings({"nodes": 2, "cpus": "0.38,0.19"}, 2)["cpus"] == [0.38, 0.19]


@pytest.mark.parametrize(("text", "size"), [("3g", 3 * 2**30), ("512M", 2**29), ("1073741824", 2**30), ("300000000", 286 * 2**20)])
def test_memory_is_in_whole_megabytes(text, size):
    assert lab_inventory._memory_bytes(text) == size


@pytest.mark.parametrize(("size", "text"), [(3 * 2**30, "3g"), (768 * 2**20, "768m")])
def test_memory_as_text(size, text):
    assert lab_inventory.memory_text(size) == text


@pytest.mark.parametrize("rate", ["none", "1gbit", "100mbit", "1GBit", "5000kbit"])
def test_link_rates(rate):
    assert lab_inventory.link_rate(rate) == rate.lower()


def test_nodes_have_names_addresses_and_lasting_hardware_addresses():
    made = lab_inventory.nodes([0.38, 0.19], "lab", "10.89.77.0/24")
    assert made[0] == {"name": "node1", "container": "lab-node1", "address": "10.89.77.11", "mac": "02:00:0a:59:4d:0b", "quota": 3_800}
    assert (made[1]["address"], made[1]["quota"]) == ("10.89.77.12", 1_900)


def test_a_subnet_has_to_be_one():
    assert refusal(lab_inventory.nodes, [1, 1], "lab", "10.89.77.1/24").startswith(
        "lab_subnet=10.89.77.1/24: 10.89.77.1/24 has host bits set; it must be an IPv4"
    )


@pytest.mark.parametrize(("number", "fits"), [(4, True), (5, False)])
def test_a_subnet_has_to_be_large_enough(number, fits):
    if fits:
        assert lab_inventory.nodes([0.38] * number, "lab", "10.0.0.0/28")[-1]["address"] == "10.0.0.14"
    else:
        assert refusal(lab_inventory.nodes, [1] * number, "lab", "10.0.0.0/28") == (
            "nodes=5: lab_subnet=10.0.0.0/28 has addresses for 4; take a larger subnet or fewer nodes"
        )


def test_owner_differs_between_two_clones():
    assert lab_inventory.owner("/home/a/lockstep") != lab_inventory.owner("/home/b/lockstep")
    assert lab_inventory.owner("/home/a/lockstep") == lab_inventory.owner("/home/a/lockstep")


def test_the_own_network_is_found():
    assert lab_inventory.check_network(
        "lab", "10.1.0.0/24", MINE, [network("lab", "10.1.0.0/24", MINE)], [{"dst": "10.1.0.0/24", "dev": "br0"}]
    )


def test_a_free_network_is_to_be_made():
    others = [network("podman", "10.88.0.0/16")]
    routes = [{"dst": "default", "dev": "eth0"}, {"dst": "192.0.2.0/24", "dev": "eth0"}]
    assert not lab_inventory.check_network("lab", "10.1.0.0/24", MINE, others, routes)


@pytest.mark.parametrize(
    ("networks", "routes", "message"),
    [
        ([network("lab", "10.9.0.0/24", OTHER)], [], "lab_prefix=lab: the lab of /home/b/lockstep has that name on this machine; "),
        ([network("lab", "10.9.0.0/24")], [], "lab_prefix=lab: network lab has that name on this machine; "),
        (
            [network("lab2", "10.1.0.0/16", OTHER)],
            [],
            "lab_subnet=10.1.0.0/24: the lab of /home/b/lockstep uses 10.1.0.0/16 on this machine; ",
        ),
        ([network("podman", "10.1.0.0/24")], [], "lab_subnet=10.1.0.0/24: network podman uses 10.1.0.0/24 on this machine; "),
        ([], [{"dst": "10.0.0.0/8", "dev": "tun0"}], "lab_subnet=10.1.0.0/24: this machine reaches 10.0.0.0/8 through tun0; "),
    ],
)
def test_a_network_of_others_is_refused(networks, routes, message):
    shown = refusal(lab_inventory.check_network, "lab", "10.1.0.0/24", MINE, networks, routes)
    assert shown == message + "choose others for this one, as in -e lab_prefix=lab2 -e lab_subnet=10.89.78.0/24"


def test_a_lab_does_not_move():
    shown = refusal(lab_inventory.check_network, "lab", "10.1.0.0/24", MINE, [network("lab2", "10.2.0.0/24", MINE)], [])
    assert shown == (
        "this project's lab is on network lab2 (10.2.0.0/24), not lab (10.1.0.0/24); give these again, as in "
        "-e lab_prefix=lab2 -e lab_subnet=10.2.0.0/24, or remove it first: ansible-playbook lab.yml -e state=absent"
    )


def changes(actual, number=3, names=None):
    wanted = lab_inventory.nodes([0.38] * number, "lab", "10.1.0.0/24")
    return lab_inventory.changes(wanted, LIMITS[2], MINE, actual, names if names is not None else [each["container"] for each in actual])


def test_all_is_made_where_nothing_is():
    assert changes([]) == {"create": ["lab-node1", "lab-node2", "lab-node3"], "start": [], "adjust": [], "remove": []}


def test_nothing_changes_where_all_is():
    actual = [container(f"lab-node{number}") for number in (1, 2, 3)]
    assert changes(actual) == {"create": [], "start": [], "adjust": [], "remove": []}


def test_stopped_changed_surplus_and_missing_nodes():
    actual = [container("lab-node1", running=False), container("lab-node2", limits=[10_000, 5_000, 2**30]), container("lab-node4")]
    assert changes(actual) == {"create": ["lab-node3"], "start": ["lab-node1"], "adjust": ["lab-node2"], "remove": ["lab-node4"]}


def test_a_node_that_never_ran_is_made_anew():
    actual = [container("lab-node1", running=False, never_ran=True)]
    assert changes(actual, 1) == {"create": ["lab-node1"], "start": [], "adjust": [], "remove": ["lab-node1"]}


def test_node_cut_off_with_its_machine_is_remade():
    """A node that was cut off with its machine is made anew."""
    actual = [container("lab-node1", running=False, cut_off=True)]
    assert changes(actual, 1) == {"create": ["lab-node1"], "start": [], "adjust": [], "remove": ["lab-node1"]}


def test_the_containers_of_another_clone_are_left_alone():
    assert changes([container("lab2-node1", OTHER)])["remove"] == []


@pytest.mark.parametrize(
    ("actual", "names", "holder"),
    [
        ([container("lab-node2", OTHER)], ["lab-node2"], "the lab of /home/b/lockstep"),
        ([], ["lab-node2", "web"], "something else"),
    ],
)
def test_a_name_of_others_is_refused(actual, names, holder):
    assert refusal(changes, actual, 3, names) == (
        f"the container name lab-node2 belongs to {holder} on this machine; "
        "choose others for this one, as in -e lab_prefix=lab2 -e lab_subnet=10.89.78.0/24"
    )


def test_facts_of_containers_and_networks():
    inspected = {
        "Id": "0a1b",
        "Name": "/lab-node1",
        "Config": {"Labels": None, "Image": "i"},
        "State": {"Running": True, "Status": "running", "Pid": 7},
        "HostConfig": {"CpuPeriod": 10_000, "CpuQuota": 3_800, "Memory": 5},
        "NetworkSettings": {"Networks": {"lab": {}}},
    }
    facts = lab_inventory.container_facts(inspected)
    assert (facts["container"], facts["id"]) == ("lab-node1", "0a1b")
    assert facts["labels"] == {}
    assert facts["limits"] == [10_000, 3_800, 5]
    assert not facts["never_ran"]
    assert not facts["cut_off"]
    podman = {
        "name": "lab",
        "subnets": [{"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"}],
        "labels": {"a": "b"},
        "network_interface": "cni1",
    }
    docker = {"Name": "lab", "Id": "0123456789abcdef", "IPAM": {"Config": [{"Subnet": "10.1.0.0/24"}]}, "Labels": {"a": "b"}}
    assert lab_inventory.network_facts(podman) == {"name": "lab", "labels": {"a": "b"}, "subnets": ["10.1.0.0/24"]}
    assert lab_inventory.network_facts(docker) == {"name": "lab", "labels": {"a": "b"}, "subnets": ["10.1.0.0/24"]}


def test_networks_without_a_subnet():
    assert lab_inventory.network_facts({"Name": "host", "Id": "0" * 12, "IPAM": {"Config": None}, "Labels": None})["subnets"] == []


def test_only_the_distributions_own_archives_are_taken():
    targets = "\n".join(
        [
            "http://mirror.example/debian/|bookworm|main",
            "http://mirror.example/debian/|bookworm|contrib",
            "http://mirror.example/debian/|bookworm-updates|main",
            "http://mirror.example/security/|bookworm-security|main",
            "http://vendor.example/linux|bookworm|stable",
            "http://vendor.example/node|nodistro|main",
            "",
        ]
    )
    actual = lab_inventory.package_sources(targets, "bookworm")
    assert actual["mirror"] == "http://mirror.example/debian/"
    assert actual["lines"] == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/debian/ bookworm-updates main",
        "deb http://mirror.example/security/ bookworm-security main",
    ]


def test_a_machine_without_archives_of_its_release():
    assert refusal(lab_inventory.package_sources, "http://mirror.example/debian/|bullseye|main", "bookworm") == (
        "the lab's image is made of bookworm main, and this machine's apt knows no archive of it; see /etc/apt"
    )


def test_proxies_of_apt_are_taken_along():
    proxies = ['Acquire::http::Proxy "http://proxy.example:3142/";', 'Acquire::https::Proxy "DIRECT";']
    dump = "\n".join([*proxies, 'Acquire::http::Timeout "5";', 'APT::Architecture "amd64";'])
    lines = lab_inventory.apt_settings(dump)
    assert lines == ['Acquire::Languages "none";', *proxies]
    assert lab_inventory.proxy_environment(lines) == {"http_proxy": "http://proxy.example:3142/"}


def test_no_containers_conf_where_none_is_needed():
    assert lab_inventory.containers_conf(1024, 1024, may_raise=True, needs_runc=False) == ""


def test_containers_conf_of_a_machine_with_low_limits():
    assert lab_inventory.containers_conf(20_000, 90_000, may_raise=False, needs_runc=True) == (
        '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=16384:16384"]\n\n[engine]\nruntime = "runc"\n'
    )


def test_recipe_digest_knows_where_a_file_ends():
    assert lab_inventory.recipe_digest([b"ab", b"c"]) != lab_inventory.recipe_digest([b"a", b"bc"])


def test_hosts_and_known_hosts():
    wanted = lab_inventory.nodes([0.38, 0.19], "lab", "10.1.0.0/24")
    assert lab_inventory.hosts_file(wanted).splitlines()[-2:] == ["10.1.0.11 node1", "10.1.0.12 node2"]
    assert "127.0.1.1" not in lab_inventory.hosts_file(wanted)
    keys = {"node1": "ssh-ed25519 AAA node1\n", "node2": "ssh-ed25519 BBB node2\n"}
    assert lab_inventory.known_hosts(wanted, keys) == "10.1.0.11 ssh-ed25519 AAA\n10.1.0.12 ssh-ed25519 BBB\n"


def test_group_paths_of_both_versions():
    text = "5:memory:/parent/node\n1:cpu,cpuacct:/parent/node\n9:name=systemd:/parent/node/init.scope\n0::/parent/node/init.scope\n"
    paths = lab_inventory.group_paths(text)
    assert (paths["cpu"], paths["memory"], paths[""]) == ("parent/node", "parent/node", "parent/node/init.scope")


def test_failures_of_the_container_modules():
    results = [
        {"container": {}, "changed": True},
        {"skipped": True, "msg": "no"},
        {"msg": "exited with 126", "stderr": "level=warning\nError: not permitted\n"},
        {"msg": "no such image"},
    ]
    assert lab_inventory.failures(results) == ["Error: not permitted", "no such image"]


@pytest.mark.parametrize(
    ("output", "line"), [("a\nError: b\nc\n", "Error: b"), ("a\nb\n\n", "b"), ("", "no message"), ("E: error 1\nerror 2", "error 2")]
)
def test_the_telling_line(output, line):
    assert lab_inventory.telling_line(output.splitlines()) == line
