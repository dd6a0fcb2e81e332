"""Ansible module: a GlusterFS volume and the pool of its servers, seen from one of them."""

import time
from xml.etree import ElementTree

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gluster_volume
short_description: A GlusterFS volume over several hosts
description:
  - Adds the servers to this host's pool, creates and starts the volume, lets only the given addresses and certificates mount it.
  - An existing volume of that name keeps its bricks; if it runs without TLS, it is restarted with it.
  - C(absent) deletes the volume if it was created here; then the servers that were added here leave the pool.
    The bricks' contents stay.
options:
  name: {type: str, required: true, description: Name of the volume.}
  bricks: {type: list, elements: str, default: [], description: "C(address:folder) of every server, in order; needed for C(present)."}
  replica: {type: int, default: 0, description: Number of servers that store every file; 0 for one.}
  allow: {type: list, elements: str, default: [], description: Addresses that may mount the volume; needed for C(present).}
  names: {type: list, elements: str, default: [], description: Names in the certificates that may mount it; needed for C(present).}
  own: {type: str, description: This host's address in O(bricks); needed for C(present).}
  state: {type: str, choices: [present, absent], default: present, description: Whether the volume should exist.}
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
bricks: {type: list, returned: state=present, description: The volume's bricks.}
"""

RECORD = "/var/lib/lockstep/volume.json"
"""File that records the volumes and peers made on this host."""
JOIN_S = 90
IN_CLUSTER = "3"
ENCRYPT = {"client.ssl": "on", "server.ssl": "on"}


def main():
    module = AnsibleModule(required_if=[("state", "present", ["own"])])
    {"present": _present, "absent": _absent}[module.params["state"]](module)


def _present(module):
    """Bring pool and volume into place."""
    installed = module.get_bin_path("gluster") is not None
    if module.check_mode and not (installed and _gluster(module, "peer", "status")[0] == 0):
        module.exit_json(changed=True, did=["create the volume"], bricks=module.params["bricks"])
    strangers = _missing_peers(module)
    existing = _volume(module)
    options = _missing_options(module, existing)
    todo = [f"take in {address}" for address in strangers]
    todo += [] if existing else ["create the volume"]
    todo += ["let the cluster's hosts in"] if not ENCRYPT.keys() >= options.keys() else []
    todo += ["encrypt the volume"] if not ENCRYPT.keys().isdisjoint(options) else []
    todo += [] if existing and existing["started"] and "encrypt the volume" not in todo else ["start the volume"]
    if todo and not module.check_mode:
        for address in strangers:
            _probe(module, address)
        _wait_for_peers(module)
        if not existing:
            replica = ["replica", str(module.params["replica"])] if module.params["replica"] else []
            # force: the brick may be on the system's disk.
            _must(module, "volume", "create", module.params["name"], *replica, *module.params["bricks"], "force")
            _remember("volumes", module.params["name"])
        if existing and existing["started"] and "encrypt the volume" in todo:
            _must(module, "volume", "stop", module.params["name"], "force")
        if options:
            _must(module, "volume", "set", module.params["name"], *(word for option in options.items() for word in option))
        if "start the volume" in todo:
            _must(module, "volume", "start", module.params["name"])
    bricks = existing["bricks"] if existing else module.params["bricks"]
    module.exit_json(changed=bool(todo), did=todo, bricks=bricks, **_kept(module, bricks))


def _missing_options(module, existing):
    """Options of the volume that differ from the wanted ones."""
    wanted = {"auth.allow": ",".join([*module.params["allow"], "127.0.0.1"]), "auth.ssl-allow": ",".join(module.params["names"]), **ENCRYPT}
    return {name: value for name, value in wanted.items() if not existing or existing["options"].get(name) != value}


def _kept(module, bricks):
    """A message if the volume has other servers than the inventory asks for now."""
    if bricks == module.params["bricks"]:
        return {}
    return {
        "show": f"warning: the volume {module.params['name']} keeps the servers that it was made with: {', '.join(bricks)}. To spread it "
        "over the inventory's hosts anew, as is needed when one of those has left it and is trusted no more: "
        "provision.yml -e state=absent (its files go), then provision.yml again"
    }


def _missing_peers(module):
    """Servers that are not in the pool yet; this host always is."""
    pool = {module.params["own"], *(name for peer in _peers(module) for name in peer["names"])}
    addresses = [brick.partition(":/")[0] for brick in module.params["bricks"]]
    return [address for address in addresses if address not in pool]


def _peers(module):
    """The pool's other members: names, whether they take part, whether they are reachable."""
    tree = _answer(module, "peer", "status")
    return [
        {
            "names": [node.text for node in peer.iter("hostname")],
            "joined": peer.findtext("state") == IN_CLUSTER,
            "connected": peer.findtext("connected") == "1",
        }
        for peer in tree.iter("peer")
    ]


def _probe(module, address):
    """Add a server to the pool, and record it."""
    code, out, error = _gluster(module, "peer", "probe", address)
    if code != 0:
        module.fail_json(
            msg=f"{host.name()}: {address} can't be taken into GlusterFS's pool: {(out + error).strip()}. "
            "Is its port 24007 reachable from here, and is it in no other pool (sudo gluster peer status)?"
        )
    _remember("peers", address)


def _wait_for_peers(module):
    """Wait until every server takes part."""
    deadline = time.monotonic() + JOIN_S
    while True:
        late = [peer["names"][0] for peer in _peers(module) if not (peer["joined"] and peer["connected"])]
        if not late:
            return
        if time.monotonic() > deadline:
            module.fail_json(
                msg=f"{host.name()}: GlusterFS on {', '.join(late)} has not joined within {JOIN_S} s; "
                "look there at: journalctl -u glusterd; then run provision.yml again"
            )
        time.sleep(0.5)


def _volume(module):
    """Bricks, options and state of the volume; None if there is none."""
    tree = _answer(module, "volume", "info")
    for entry in tree.iter("volume"):
        if entry.findtext("name") == module.params["name"]:
            options = {option.findtext("name"): option.findtext("value") for option in entry.iter("option")}
            bricks = [brick.findtext("name") or brick.text for brick in entry.iter("brick")]
            return {"bricks": bricks, "options": options, "started": entry.findtext("statusStr") == "Started"}
    return None


def _absent(module):
    """Delete a volume that was created here, and leave a pool that was made here."""
    record = files.Record(RECORD).read()
    if not record:
        module.exit_json(changed=False, did=[])
    mine = module.params["name"] in record.get("volumes", [])
    todo = [f"delete the volume {module.params['name']}"] if mine else []
    todo += [f"let {address} go" for address in record.get("peers", [])]
    if not module.check_mode:
        if module.get_bin_path("gluster") is not None:
            _dissolve(module, mine, record.get("peers", []))
        files.Record(RECORD).remove()
    module.exit_json(changed=True, did=todo)


def _dissolve(module, mine, members):
    """Stop and delete the volume; servers without any other volume leave the pool."""
    existing = _volume(module) if mine else None
    if existing:
        if existing["started"]:
            _must(module, "volume", "stop", module.params["name"], "force")
        _must(module, "volume", "delete", module.params["name"])
    pool = {name for peer in _peers(module) for name in peer["names"]}
    if not _answer(module, "volume", "info").findall(".//volume"):
        for address in members:
            if address in pool:
                _must(module, "peer", "detach", address, "force")


def _answer(module, *arguments):
    code, out, error = module.run_command(["gluster", "--mode=script", "--xml", *arguments])
    if code != 0 or not out.strip():
        module.fail_json(
            msg=f"{host.name()}: `gluster {' '.join(arguments)}` failed: {(error or out).strip()}; look at: journalctl -u glusterd"
        )
    return ElementTree.fromstring(out)  # noqa: S314 - gluster itself wrote it


def _gluster(module, *arguments):
    return module.run_command(["gluster", "--mode=script", *arguments])


def _must(module, *arguments):
    host.run(module, "gluster", "--mode=script", *arguments)


def _remember(kind, name):
    record = files.Record(RECORD).read()
    files.Record(RECORD).write({**record, kind: sorted({*record.get(kind, []), name})})


if __name__ == "__main__":
    main()
