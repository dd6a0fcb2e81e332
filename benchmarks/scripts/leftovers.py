"""Leftovers of many short runs on the lab's nodes: processes, sessions, listening ports, files, memory.

    .venv/bin/python benchmarks/scripts/leftovers.py -i inventory/lab [--runs 50] [ansible-playbook arguments: configuration and dataset]

Each run is trained and deleted. The first fills caches; what the nodes have after it is compared with what they have after the last.
Needs root, and this project's lab.
"""

from typing import NamedTuple

from benchmarks.scripts.launch_time import delete, play
from benchmarks.shared import script
from benchmarks.shared.lab_nodes import MEMORY, Lab, nodes_of_script
from benchmarks.shared.script import ROOT
from control.common import text

RUN = "leftover"
LOOKS = {
    # Of the user who trains, without the processes that look, and without those of systemd for its sessions.
    "processes": "ps -u lockstep -o args= | grep -v -e ^ps -e ^grep -e ^sh -e systemd -e sd-pam || true",
    "sessions": "su lockstep -c 'tmux -L lockstep ls' 2>/dev/null | cut -d: -f1 || true",
    "ports": "ss -Htln | awk '{print $4}' | sort",
    "files": "find /home/lockstep /tmp /dev/shm /run/lockstep /mnt/lockstep -type f 2>/dev/null | sort",
}
"""Commands that list a node's contents, a line each, by kind."""


class Node(NamedTuple):
    """State of a node."""

    listed: dict[str, set[str]]
    """Lines of each of `LOOKS`."""
    bytes: int
    """Memory of its processes."""


def main() -> None:
    """Train, delete, compare."""
    line = script.parser(__doc__, runs=50)
    arguments, more = line.parse_known_args()
    lab = nodes_of_script(0.0)
    first = None
    for number in range(arguments.runs + 1):
        delete(ROOT, RUN, more)
        play(ROOT, "train.yml", RUN, more)
        delete(ROOT, RUN, more)
        first = first or look(lab)
        print(f"{number} of {arguments.runs}", flush=True)
    print(table(first or look(lab), look(lab)))


def look(lab: Lab) -> dict[str, Node]:
    """Current state of each node."""
    return {host: _look(lab, host) for host in sorted(lab.containers)}


def _look(lab: Lab, host: str) -> Node:
    listed = {name: set(lab.on(host, "sh", "-c", command).splitlines()) for name, command in LOOKS.items()}
    statistics = dict(line.split() for line in lab.on(host, "sh", "-c", MEMORY).splitlines())
    return Node(listed, int(statistics.get("total_rss") or statistics["anon"]))


def table(before: dict[str, Node], after: dict[str, Node]) -> str:
    """Table of each node's new entries, and of the change of its memory."""
    rows, names = [], []
    for host, node in after.items():
        new = {name: sorted(lines - before[host].listed[name]) for name, lines in node.listed.items()}
        names += [f"{host}: {name}: {line}" for name, lines in new.items() for line in lines]
        rows.append([host, *(len(new[name]) for name in LOOKS), text.Number((node.bytes - before[host].bytes) / 1e6, 1)])
    return "\n".join([text.table(["node", *(f"new {name}" for name in LOOKS), "memory, MB more"], rows), *names])


if __name__ == "__main__":
    main()
