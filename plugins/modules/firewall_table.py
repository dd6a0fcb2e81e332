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
  table: {type: str, default: lockstep, description: "Name of the table, of family C(inet)."}
  state: {type: str, choices: [present, absent], default: present, description: Whether the table should exist.}
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
"""

RULES = "/etc/lockstep/firewall.nft"
LOADED = "/etc/lockstep/firewall.loaded"
"""Digest of the table as it was right after loading."""
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
"""Ports that the kernel assigns to no program."""
SYSCTL = "/etc/sysctl.d/90-lockstep.conf"
SYSCTL_TEXT = """# Made by Lockstep; its own ports: {own}
net.ipv4.ip_local_reserved_ports = {every}
"""
UNIT = "/etc/systemd/system/lockstep-firewall.service"
UNIT_TEXT = """# Made by Lockstep.
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
    _Table(AnsibleModule(required_if=[("state", "present", ["rules"])])).act()


class _Table(host.Change):
    """The table, the unit that loads it at boot, and the reserved ports."""

    def present(self):
        """Bring file, unit and table into place."""
        nft = self.module.get_bin_path("nft")
        if nft is None:
            if self.module.check_mode:
                self.end(["load the rules"])
            self.fail("nft is missing; install it: sudo apt-get install nftables")
        unit, unit_text = host.Unit(self, UNIT), UNIT_TEXT.format(nft=nft, rules=RULES, table=self.params["table"])
        todo = [] if files.read(RULES) == self.params["rules"] else ["write the rules"]
        todo += [] if unit.has(unit_text) else ["load them at boot"]
        todo += [] if self._holds() else ["reserve the ports"]
        todo += [] if not todo and self._loaded(nft) == files.read(LOADED) else ["load the rules"]
        if todo and not self.module.check_mode:
            os.makedirs(os.path.dirname(RULES), exist_ok=True)
            self._check(nft)
            files.replace(RULES, self.params["rules"])
            if "reserve the ports" in todo:
                self._reserve()
            if "load them at boot" in todo:
                unit.install(unit_text)
            self.run(nft, "-f", RULES)
            self.run("systemctl", "start", unit.name)
            files.replace(LOADED, self._loaded(nft))
        self.end(todo)

    def absent(self):
        """Remove table, unit and files."""
        nft = self.module.get_bin_path("nft")
        parts = {
            "remove the unit": os.path.exists(UNIT),
            "remove the table": bool(nft and self._loaded(nft)),
            "remove the rules": os.path.exists(RULES),
            "release the ports": os.path.exists(SYSCTL),
        }
        todo = [what for what, exists in parts.items() if exists]
        if todo and not self.module.check_mode:
            if "remove the unit" in todo:
                host.Unit(self, UNIT).remove()
            if nft and self._loaded(nft):
                self.run(nft, "delete", "table", "inet", self.params["table"])
            if "release the ports" in todo:
                _set_reserved(_spans(_numbers(files.read(RESERVED)) - _own_ports()))
                os.unlink(SYSCTL)
            for path in (RULES, LOADED):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            files.remove_if_empty(os.path.dirname(RULES))
        self.end(todo)

    def _check(self, nft):
        """Refuse rules that nft would reject, before anything is replaced."""
        candidate = f"{RULES}.part"
        files.replace(candidate, self.params["rules"])
        code, _, error = self.module.run_command([nft, "-c", "-f", candidate])
        os.unlink(candidate)
        if code != 0:
            self.fail(
                f"nftables rejects the rules: {error.strip()}. The kernel may lack nf_tables "
                "or a part of it (modprobe nf_tables nft_reject_inet); without a firewall: -e firewall=false"
            )

    def _holds(self):
        """Return whether our ports are reserved now and at boot."""
        own = _numbers(",".join(self.params["ports"]))
        # A container may not set it; then there is nothing to do.
        return _own_ports() == own and (own <= _numbers(files.read(RESERVED)) or not os.access(RESERVED, os.W_OK))

    def _reserve(self):
        """Reserve our ports in addition to those that others reserved."""
        own = _numbers(",".join(self.params["ports"]))
        every = _spans(own | (_numbers(files.read(RESERVED)) - _own_ports()))
        files.replace(SYSCTL, SYSCTL_TEXT.format(own=_spans(own), every=every))
        _set_reserved(every)

    def _loaded(self, nft):
        """Digest of the table in the kernel (without counters); empty if there is none."""
        code, out, _ = self.module.run_command([nft, "-s", "list", "table", "inet", self.params["table"]])
        return hashlib.sha256(out.encode()).hexdigest() if code == 0 else ""


def _set_reserved(ports):
    with contextlib.suppress(OSError), open(RESERVED, "w", encoding="ascii") as stream:
        stream.write(f"{ports}\n")


def _own_ports():
    """Our ports, from our file."""
    return _numbers(files.read(SYSCTL).partition("\n")[0].rpartition(": ")[2])


def _numbers(text):
    """Ports in a list such as `80,100-102`."""
    pairs = [one.strip().partition("-") for one in text.split(",") if one.strip()]
    return {port for first, _, last in pairs for port in range(int(first), int(last or first) + 1)}


def _spans(ports):
    """The list of ports in the kernel's format."""
    starts = [port for port in sorted(ports) if port - 1 not in ports]
    ends = [port for port in sorted(ports) if port + 1 not in ports]
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in zip(starts, ends))  # noqa: B905 - Python 3.9


if __name__ == "__main__":
    main()
