"""Ansible module: our own nftables table, now and at every boot."""

import contextlib
import hashlib
import os

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: firewall_table
short_description: An nftables table, loaded now and at every boot
description:
  - Loads a file that replaces one table in a single transaction, keeps it on disk, and a systemd unit that loads it at boot.
  - Rules changed by hand are detected and replaced. No other table and none of nftables' own files is touched.
  - The kernel assigns the ports in the rules to no other program. Other reserved ports stay reserved.
options:
  rules: {type: str, description: Text for C(nft -f); needed for C(present).}
  ports: {type: list, elements: str, default: [], description: Ports and ranges that the kernel must not assign.}
  reserved: {type: path, default: /proc/sys/net/ipv4/ip_local_reserved_ports, description: The kernel's list of such ports.}
  sysctl: {type: path, default: /etc/sysctl.d/90-lockstep.conf, description: Our own file that sets it at boot.}
  table: {type: str, default: lockstep, description: "Name of the table, of family C(inet)."}
  folder: {type: path, default: /etc/lockstep, description: Our own folder for the rules.}
  unit: {type: path, default: /etc/systemd/system/lockstep-firewall.service, description: File of the systemd unit.}
  state: {type: str, choices: [present, absent], default: present, description: Whether the table should exist.}
"""

EXAMPLES = """
- name: Close the worker ports
  firewall_table: {rules: "{{ addresses | firewall_rules(ports) }}"}
  become: true
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
"""

UNIT = """# Made by Lockstep.
[Unit]
Description=Lockstep's firewall: worker ports for the cluster only
Wants=network-pre.target
Before=network-pre.target
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {rules}
ExecReload={nft} -f {rules}
ExecStop=-{nft} delete table inet {table}

[Install]
WantedBy=multi-user.target nftables.service
"""


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "rules": {"type": "str"},
            "ports": {"type": "list", "elements": "str", "default": []},
            "reserved": {"type": "path", "default": "/proc/sys/net/ipv4/ip_local_reserved_ports"},
            "sysctl": {"type": "path", "default": "/etc/sysctl.d/90-lockstep.conf"},
            "table": {"type": "str", "default": "lockstep"},
            "folder": {"type": "path", "default": "/etc/lockstep"},
            "unit": {"type": "path", "default": "/etc/systemd/system/lockstep-firewall.service"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["rules"])],
        supports_check_mode=True,
    )
    if module.params["state"] == "present":
        present(module)
    absent(module)


def present(module):
    """Bring file, unit and table into place."""
    nft = module.get_bin_path("nft")
    if nft is None:
        if module.check_mode:
            module.exit_json(changed=True, did=["load the rules"])
        module.fail_json(msg=f"{host.name()}: nft is missing; install it: sudo apt-get install nftables")
    unit, unit_text = module.params["unit"], UNIT.format(nft=nft, rules=rules_path(module), table=module.params["table"])
    todo = [] if files.read(rules_path(module)) == module.params["rules"] else ["write the rules"]
    todo += [] if files.read(unit) == unit_text and host.enabled(module, unit) else ["load them at boot"]
    todo += [] if holds(module) else ["reserve the ports"]
    todo += [] if not todo and loaded(module, nft) == files.read(seen_path(module)) else ["load the rules"]
    if todo and not module.check_mode:
        os.makedirs(module.params["folder"], exist_ok=True)
        check(module, nft)
        files.replace(rules_path(module), module.params["rules"])
        if "reserve the ports" in todo:
            reserve(module)
        if "load them at boot" in todo:
            files.replace(unit, unit_text)
            host.enable(module, unit)
        host.run(module, nft, "-f", rules_path(module))
        host.run(module, "systemctl", "start", os.path.basename(unit))
        files.replace(seen_path(module), loaded(module, nft))
    module.exit_json(changed=bool(todo), did=todo)


def check(module, nft):
    """Refuse rules that nft would reject, before anything is replaced."""
    candidate = f"{rules_path(module)}.part"
    files.replace(candidate, module.params["rules"])
    code, _, error = module.run_command([nft, "-c", "-f", candidate])
    os.unlink(candidate)
    if code != 0:
        module.fail_json(
            msg=f"{host.name()}: nftables rejects the rules: {error.strip()}. The kernel may lack nf_tables "
            "or a part of it (modprobe nf_tables nft_reject_inet); without a firewall: -e firewall=false"
        )


SYSCTL = """# Made by Lockstep; its own ports: {own}
net.ipv4.ip_local_reserved_ports = {every}
"""


def holds(module):
    """Whether our ports are reserved now and at boot."""
    own, path = numbers(",".join(module.params["ports"])), module.params["reserved"]
    # A container may not set it; then there is nothing to do.
    return own_ports(module) == own and (own <= numbers(files.read(path)) or not os.access(path, os.W_OK))


def reserve(module):
    """Reserve our ports in addition to those that others reserved."""
    own = numbers(",".join(module.params["ports"]))
    every = spans(own | (numbers(files.read(module.params["reserved"])) - own_ports(module)))
    files.replace(module.params["sysctl"], SYSCTL.format(own=spans(own), every=every))
    set_reserved(module, every)


def release(module):
    """Remove our ports from the reserved ones."""
    left = numbers(files.read(module.params["reserved"])) - own_ports(module)
    set_reserved(module, spans(left))
    os.unlink(module.params["sysctl"])


def set_reserved(module, ports):
    """Set the kernel's list, if possible."""
    with contextlib.suppress(OSError), open(module.params["reserved"], "w", encoding="ascii") as stream:
        stream.write(f"{ports}\n")


def own_ports(module):
    """Our ports, from our file."""
    return numbers(files.read(module.params["sysctl"]).partition("\n")[0].rpartition(": ")[2])


def numbers(text):
    """Ports in a list such as `80,100-102`."""
    pairs = [one.strip().partition("-") for one in text.split(",") if one.strip()]
    return {port for first, _, last in pairs for port in range(int(first), int(last or first) + 1)}


def spans(ports):
    """The list of ports in the kernel's format."""
    starts = [port for port in sorted(ports) if port - 1 not in ports]
    ends = [port for port in sorted(ports) if port + 1 not in ports]
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in zip(starts, ends))  # noqa: B905 - Python 3.9


def loaded(module, nft):
    """Digest of the table in the kernel (without counters); empty if there is none."""
    code, out, _ = module.run_command([nft, "-s", "list", "table", "inet", module.params["table"]])
    return hashlib.sha256(out.encode()).hexdigest() if code == 0 else ""


def absent(module):
    """Remove table, unit and files."""
    nft = module.get_bin_path("nft")
    parts = {
        "remove the unit": os.path.exists(module.params["unit"]),
        "remove the table": bool(nft and loaded(module, nft)),
        "remove the rules": os.path.exists(rules_path(module)),
        "release the ports": os.path.exists(module.params["sysctl"]),
    }
    todo = [what for what, exists in parts.items() if exists]
    if todo and not module.check_mode:
        remove(module, nft, todo)
    module.exit_json(changed=bool(todo), did=todo)


def remove(module, nft, todo):
    """Remove what is there."""
    if "remove the unit" in todo:
        host.remove_unit(module, module.params["unit"])
    if nft and loaded(module, nft):
        host.run(module, nft, "delete", "table", "inet", module.params["table"])
    if "release the ports" in todo:
        release(module)
    for path in (rules_path(module), seen_path(module)):
        if os.path.exists(path):
            os.unlink(path)
    files.remove_if_empty(module.params["folder"])


def rules_path(module):
    """The file that nft loads."""
    return os.path.join(module.params["folder"], "firewall.nft")


def seen_path(module):
    """Digest of the table as it was right after loading."""
    return os.path.join(module.params["folder"], "firewall.loaded")


if __name__ == "__main__":
    main()
