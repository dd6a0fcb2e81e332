"""Pure functions of the lab: the user's settings, nodes, and the changes needed on this machine."""

import hashlib
import ipaddress
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from control.common.operator_variables import check_state, integer
from trainer.common.errors import ConfigError
from trainer.common.safe_text import printable

CPU_PERIOD_US = 10_000
"""The kernel grants a node its quota of microseconds in each."""
ELSEWHERE = "choose others for this one, as in -e lab_prefix=lab2 -e lab_subnet=10.89.78.0/24"
FIRST_ADDRESS = 10
OWNER_LABEL = "lockstep.lab"
PROJECT_LABEL = "lockstep.project"
PROCESSES = 16_384
SHARED_OUT = 0.95
SMALLEST_SHARE = 0.1
UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
SMALLEST_MEMORY = 256 * 2**20
COMPONENTS = ("main", "universe")


def settings(options: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """The user's settings, checked: nodes, cpus (cores of each node), memory (bytes), link (as `tc` writes rates), state, image.

    Args:
        options: operator variables of the command `lab`, as strings or values.
        cores: processors available to us on this machine.

    Raises:
        ConfigError: an invalid value, with the rule and an example.
    """
    nodes = integer("nodes", options.get("nodes", 5))
    state, image = check_state(options), check_state(options, "image")
    if image == "absent" and state == "present":
        raise ConfigError("image=absent: it belongs to the removal of the lab; ansible-playbook lab.yml -e state=absent -e image=absent")
    return {
        "nodes": nodes,
        "cpus": _cpus(options.get("cpus", _default_share(nodes, cores)), nodes, cores),
        "memory": _memory_bytes(options.get("memory", "3g")),
        "link": link_rate(options.get("link", "none")),
        "state": state,
        "image": image,
    }


def _default_share(nodes: int, cores: int) -> float:
    """Cores for each node: an even division of the machine, less a little for the control node."""
    return max(SMALLEST_SHARE, math.floor(cores * SHARED_OUT / nodes * 100) / 100)


def _cpus(value: Any, nodes: int, cores: int) -> list[float]:
    """One share for all nodes, or one per node."""
    shares = [_share(value, part, cores) for part in str(value).split(",")]
    if len(shares) not in (1, nodes):
        raise ConfigError(f"cpus={value}: {len(shares)} shares for {nodes} nodes; give one for all, as in -e cpus=0.38, or one for each")
    return shares * nodes if len(shares) == 1 else shares


def _share(value: Any, part: str, cores: int) -> float:
    try:
        share = float(part)
    except ValueError:
        share = math.nan
    if not SMALLEST_SHARE <= share <= cores:
        raise ConfigError(f"cpus={value}: it must lie between {SMALLEST_SHARE} and this machine's {cores} cores, as in -e cpus=0.38")
    return share


def _memory_bytes(value: Any) -> int:
    """Bytes of `3g`, `512m` or a plain number of bytes, in whole megabytes: the kernel rounds to pages."""
    parts = re.fullmatch(r"(\d+)([bkmg]?)", str(value).lower())
    size = int(parts[1]) * UNITS[parts[2]] if parts else 0
    if size < SMALLEST_MEMORY:
        raise ConfigError(f"memory={value}: it must be a number with k, m or g, at least 256m, as in -e memory=3g")
    return size // 2**20 * 2**20


def memory_text(size: int) -> str:
    """`3g` for 3221225472; megabytes if it is not a whole number of gigabytes."""
    return f"{size // 2**30}g" if size % 2**30 == 0 else f"{size // 2**20}m"


def link_rate(value: Any) -> str:
    """A rate as `tc` takes it (`1gbit`), or `none` for no limit."""
    rate = str(value).lower()
    if rate != "none" and not re.fullmatch(r"[1-9]\d*[kmg]?bit", rate):
        raise ConfigError(f"link={value}: it must be none or a rate in bits per second, as in -e link=1gbit or link=100mbit")
    return rate


def nodes(cpus: Sequence[float], prefix: str, subnet: str) -> list[dict[str, Any]]:
    """`name`, `container`, `address`, `mac` and `quota` of each node, from the cores of each.

    The MAC address follows from the IP address, so other nodes find a restarted node at once.

    Raises:
        ConfigError: the subnet is invalid or has too few addresses.
    """
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise ConfigError(f"lab_subnet={subnet}: {error}; it must be an IPv4 network, as in 10.89.77.0/24") from None
    number = len(cpus)
    if network.num_addresses < FIRST_ADDRESS + number + 2:
        fits = max(0, network.num_addresses - FIRST_ADDRESS - 2)
        raise ConfigError(f"nodes={number}: lab_subnet={subnet} has addresses for {fits}; take a larger subnet or fewer nodes")
    return [_node(index, prefix, network[FIRST_ADDRESS + index], share) for index, share in enumerate(cpus, 1)]


def _node(index: int, prefix: str, address: ipaddress.IPv4Address, share: float) -> dict[str, Any]:
    name, mac = f"node{index}", ":".join(f"{byte:02x}" for byte in (2, 0, *address.packed))
    return {"name": name, "container": f"{prefix}-{name}", "address": str(address), "mac": mac, "quota": round(share * CPU_PERIOD_US)}


def owner(project: str) -> str:
    """A digest of the project's folder, which labels everything made by this clone."""
    return hashlib.sha256(project.encode()).hexdigest()[:12]


def container_facts(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """The relevant facts of a container, from podman's or docker's `inspect`."""
    limits = inspected["HostConfig"]
    attached = inspected["NetworkSettings"].get("Networks") or {}
    return {
        "container": inspected["Name"].removeprefix("/"),
        "id": inspected["Id"],
        "labels": inspected["Config"].get("Labels") or {},
        "running": bool(inspected["State"]["Running"]),
        "never_ran": inspected["State"].get("Status") in ("created", "initialized", "configured"),
        "cut_off": False,
        "image": inspected["Config"]["Image"],
        "networks": sorted(attached),
        "pid": inspected["State"].get("Pid", 0),
        "limits": [limits.get("CpuPeriod"), limits.get("CpuQuota"), limits.get("Memory")],
    }


def group_paths(text: str) -> dict[str, str]:
    """Controller to group, without the leading slash, from a /proc/PID/cgroup; the controller of version 2 is ``."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    return {controller: path.lstrip("/") for _, controllers, path in rows for controller in controllers.split(",")}


def network_facts(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """Name, labels and subnets of a network, from podman's or docker's `inspect`."""
    if "IPAM" in inspected:
        given = [part["Subnet"] for part in inspected["IPAM"].get("Config") or []]
        return {"name": inspected["Name"], "labels": inspected.get("Labels") or {}, "subnets": given}
    given = [part["subnet"] for part in inspected.get("subnets") or []]
    return {"name": inspected["name"], "labels": inspected.get("labels") or {}, "subnets": given}


def check_network(name: str, subnet: str, mine: str, networks: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the lab's network already exists.

    Args:
        name: of the lab's network.
        subnet: its intended subnet.
        mine: this project's `owner`.
        networks: of the engine, from `network_facts`.
        routes: of this machine, from `ip -j route`.

    Raises:
        ConfigError: the name or the subnet is taken, or the lab has another subnet.
    """
    for network in networks:
        if network["labels"].get(OWNER_LABEL) == mine:
            if network["name"] != name or subnet not in network["subnets"]:
                where = ", ".join(network["subnets"])
                raise ConfigError(
                    f"this project's lab is on network {network['name']} ({where}), not {name} ({subnet}); give these again, as in "
                    f"-e lab_prefix={network['name']} -e lab_subnet={where}, or remove it first: ansible-playbook lab.yml -e state=absent"
                )
            return True
    _refuse_taken(name, subnet, networks, routes)
    return False


def _refuse_taken(name: str, subnet: str, networks: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]) -> None:
    for network in networks:
        holder = f"the lab of {network['labels'][PROJECT_LABEL]}" if PROJECT_LABEL in network["labels"] else f"network {network['name']}"
        if network["name"] == name:
            raise ConfigError(f"lab_prefix={name}: {holder} has that name on this machine; {ELSEWHERE}")
        taken = [other for other in network["subnets"] if _overlap(other, subnet)]
        if taken:
            raise ConfigError(f"lab_subnet={subnet}: {holder} uses {taken[0]} on this machine; {ELSEWHERE}")
    for route in routes:
        if route["dst"] != "default" and _overlap(route["dst"], subnet):
            raise ConfigError(f"lab_subnet={subnet}: this machine reaches {route['dst']} through {route['dev']}; {ELSEWHERE}")


def abandoned(engine: str, containers: Sequence[Mapping[str, Any]], networks: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each lab whose project's folder is no more, with the command that removes it: that project's lab.yml can't."""
    labels = [each["labels"] for each in (*containers, *networks)]
    lines = []
    for project in dict.fromkeys(one[PROJECT_LABEL] for one in labels if PROJECT_LABEL in one and not Path(one[PROJECT_LABEL]).is_dir()):
        its = [[each for each in kind if each["labels"].get(PROJECT_LABEL) == project] for kind in (containers, networks)]
        nodes, nets = [each["container"] for each in its[0]], [each["name"] for each in its[1]]
        commands = [[engine, "rm", "--force", "--volumes", *nodes]] * bool(nodes) + [[engine, "network", "rm", *nets]] * bool(nets)
        lines.append(f"The lab of {printable(project, 200)}, a folder that is no more, goes with: {'; '.join(map(shlex.join, commands))}")
    return lines


def _overlap(one: str, other: str) -> bool:
    first, second = ipaddress.ip_network(one, strict=False), ipaddress.ip_network(other, strict=False)
    return first.version == second.version and first.overlaps(second)


def changes(
    wanted: Sequence[Mapping[str, Any]], memory: int, mine: str, containers: Sequence[Mapping[str, Any]], names: Iterable[str]
) -> dict[str, list[str]]:
    """Containers to create, start, adjust (CPU and memory limits) and remove.

    Args:
        wanted: from `nodes`.
        memory: bytes of each node.
        mine: this project's `owner`.
        containers: of any lab, from `container_facts`.
        names: of all containers of the engine.

    Raises:
        ConfigError: a node's name is taken by a container that this project did not make.
    """
    own = {each["container"]: each for each in containers if each["labels"].get(OWNER_LABEL) == mine}
    limits = {node["container"]: [CPU_PERIOD_US, node["quota"], memory] for node in wanted}
    _refuse_foreign(limits, own, containers, names)
    # A container that never ran may have bad settings: create it again. After a machine was cut off, the engine believes its
    # containers are running and does not start them.
    kept = [name for name in limits if name in own and not own[name]["never_ran"] and not own[name]["cut_off"]]
    return {
        "create": [name for name in limits if name not in kept],
        "start": [name for name in kept if not own[name]["running"]],
        "adjust": [name for name in kept if own[name]["limits"] != limits[name]],
        "remove": sorted(own.keys() - set(kept)),
    }


def _refuse_foreign(wanted: Iterable[str], own: Mapping[str, Any], containers: Sequence[Mapping[str, Any]], names: Iterable[str]) -> None:
    projects = {each["container"]: each["labels"].get(PROJECT_LABEL) for each in containers}
    for name in sorted(set(wanted) & set(names) - own.keys()):
        holder = f"the lab of {projects[name]}" if projects.get(name) else "something else"
        raise ConfigError(f"the container name {name} belongs to {holder} on this machine; {ELSEWHERE}")


def package_sources(targets: str, codename: str) -> dict[str, Any]:
    """The package archives that this machine uses for its distribution, for a node of the same release.

    Args:
        targets: lines `address|release|component` from `apt-get indextargets`.
        codename: of the release, as in /etc/os-release.

    Returns:
        `mirror`: address for debootstrap; `lines`: of a sources.list.

    Raises:
        ConfigError: no archive of this release is configured.
    """
    releases = (codename, f"{codename}-updates", f"{codename}-security")
    rows = [tuple(line.split("|")) for line in targets.splitlines() if line.count("|") == 2]
    kept = sorted({row for row in rows if row[1] in releases and row[2] in COMPONENTS})
    mirrors = [address for address, release, component in kept if release == codename and component == "main"]
    if not mirrors:
        raise ConfigError(f"the lab's image is made of {codename} main, and this machine's apt knows no archive of it; see /etc/apt")
    return {"mirror": mirrors[0], "lines": [f"deb {address} {release} {component}" for address, release, component in kept]}


def apt_settings(dump: str) -> list[str]:
    """Proxy lines of `apt-config dump`, and no translations: they take time."""
    proxies = [line for line in dump.splitlines() if re.match(r'Acquire::(http|https)::(Proxy|Proxy::\S+) ".+";$', line)]
    return ['Acquire::Languages "none";', *proxies]


def proxy_environment(lines: Iterable[str]) -> dict[str, str]:
    """`http_proxy` and `https_proxy` for debootstrap, from apt's proxy settings."""
    matches = [re.match(r'Acquire::(http|https)::Proxy "(.+)";$', line) for line in lines]
    return {f"{each[1]}_proxy": each[2] for each in matches if each and each[2] != "DIRECT"}


def containers_conf(nofile: int, nproc: int, may_raise: bool, needs_runc: bool) -> str:
    """Settings that podman needs to start containers under these hard limits of open files and processes, or an empty string."""
    # The full hard limit of processes is refused, too: podman and runc run under lower ones than this process.
    nproc = min(nproc, PROCESSES)
    parts = [] if may_raise else [f'[containers]\ndefault_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]\n']
    if needs_runc:
        parts.append('[engine]\nruntime = "runc"\n')
    return "\n".join(parts)


def recipe_digest(contents: Sequence[bytes]) -> str:
    """Tag of the image: a digest of all its sources."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()[:12]


def hosts_file(wanted: Sequence[Mapping[str, Any]]) -> str:
    """/etc/hosts of every node: names and reachable addresses of all nodes."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join([*lines, *(f"{node['address']} {node['name']}" for node in wanted)]) + "\n"


def known_hosts(wanted: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> str:
    """Lines for ssh's known_hosts from the nodes' public host keys (`type base64 comment`)."""
    return "".join(f"{node['address']} {' '.join(keys[node['name']].split()[:2])}\n" for node in wanted)


def failures(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Errors from the modules that make containers."""
    failed = [each for each in results if "msg" in each and "container" not in each and not each.get("skipped")]
    return [telling_line(str(each.get("stderr") or each["msg"]).splitlines()) for each in failed]


def telling_line(lines: Iterable[str]) -> str:
    """The line of an output that says what went wrong: the last that mentions an error, otherwise the last."""
    messages = [line.strip() for line in lines if line.strip()]
    errors = [line for line in messages if "error" in line.lower()]
    return (errors or messages or ["no message"])[-1]
