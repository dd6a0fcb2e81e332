"""Ansible module: one nftables table of our own, now and at every boot."""

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
  - Rules that somebody changed by hand are noticed and replaced. No other table and no file of nftables' own is touched.
options:
  rules:
    description: Text for C(nft -f); needed for C(present).
    type: str
  table:
    description: Name of the table, of family C(inet).
    type: str
    default: lockstep
  folder:
    description: Folder of our own for the rules.
    type: path
    default: /etc/lockstep
  unit:
    description: File of the systemd unit.
    type: path
    default: /etc/systemd/system/lockstep-firewall.service
  state:
    description: Whether the table is to be there.
    type: str
    choices: [present, absent]
    default: present
author: Lockstep
"""

EXAMPLES = """
- name: Close the worker ports
  firewall_table:
    rules: "{{ addresses | firewall_rules(ports) }}"
  become: true
"""

RETURN = """
did:
  description: What was changed.
  returned: always
  type: list
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
    unit = UNIT.format(nft=nft, rules=rules_path(module), table=module.params["table"])
    todo = [] if files.read(rules_path(module)) == module.params["rules"] else ["write the rules"]
    todo += [] if files.read(module.params["unit"]) == unit and enabled(module) else ["load them at boot"]
    todo += [] if not todo and loaded(module, nft) == files.read(seen_path(module)) else ["load the rules"]
    if todo and not module.check_mode:
        os.makedirs(module.params["folder"], exist_ok=True)
        check(module, nft)
        files.replace(rules_path(module), module.params["rules"])
        if "load them at boot" in todo:
            files.replace(module.params["unit"], unit)
            host.run(module, "systemctl", "daemon-reload")
            host.run(module, "systemctl", "enable", unit_name(module))
        host.run(module, nft, "-f", rules_path(module))
        host.run(module, "systemctl", "start", unit_name(module))
        files.replace(seen_path(module), loaded(module, nft))
    module.exit_json(changed=bool(todo), did=todo)


def check(module, nft):
    """Refuse rules that nft would not take, before anything is replaced."""
    candidate = f"{rules_path(module)}.part"
    files.replace(candidate, module.params["rules"])
    code, _, error = module.run_command([nft, "-c", "-f", candidate])
    os.unlink(candidate)
    if code != 0:
        module.fail_json(
            msg=f"{host.name()}: nftables does not take the rules: {error.strip()}. The kernel may lack nf_tables (modprobe nf_tables); "
            "without a firewall: -e firewall=false"
        )


def loaded(module, nft):
    """Digest of the table as the kernel has it (counters left out); empty when there is none."""
    code, out, _ = module.run_command([nft, "-s", "list", "table", "inet", module.params["table"]])
    return hashlib.sha256(out.encode()).hexdigest() if code == 0 else ""


def absent(module):
    """Remove table, unit and files."""
    nft, todo = module.get_bin_path("nft"), []
    if os.path.exists(module.params["unit"]):
        todo.append("remove the unit")
    if nft and loaded(module, nft):
        todo.append("remove the table")
    if os.path.exists(rules_path(module)):
        todo.append("remove the rules")
    if todo and not module.check_mode:
        if "remove the unit" in todo:
            host.run(module, "systemctl", "disable", "--now", unit_name(module))
            os.unlink(module.params["unit"])
            host.run(module, "systemctl", "daemon-reload")
        if nft and loaded(module, nft):
            host.run(module, nft, "delete", "table", "inet", module.params["table"])
        for path in (rules_path(module), seen_path(module)):
            if os.path.exists(path):
                os.unlink(path)
        if os.path.isdir(module.params["folder"]) and not os.listdir(module.params["folder"]):
            os.rmdir(module.params["folder"])
    module.exit_json(changed=bool(todo), did=todo)


def rules_path(module):
    """The file that nft loads."""
    return os.path.join(module.params["folder"], "firewall.nft")


def seen_path(module):
    """Digest of the table as it was right after loading."""
    return os.path.join(module.params["folder"], "firewall.loaded")


def unit_name(module):
    """Name of the systemd unit."""
    return os.path.basename(module.params["unit"])


def enabled(module):
    """Whether the unit is loaded at boot."""
    return module.run_command(["systemctl", "is-enabled", "--quiet", unit_name(module)])[0] == 0


if __name__ == "__main__":
    main()
