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
    _Volume(AnsibleModule(required_if=[("state", "present", ["own"])])).act()


class _Volume(host.Change):
    """The volume and the pool of its servers, as `gluster` on this host shows them."""

    def __init__(self, module):
        super().__init__(module)
        self.name, self.bricks, self.record = self.params["name"], self.params["bricks"], files.Record(RECORD)

    def present(self):
        """Bring pool and volume into place."""
        installed = self.module.get_bin_path("gluster") is not None
        if self.module.check_mode and not (installed and self._gluster("peer", "status")[0] == 0):
            self.end(["create the volume"], bricks=self.bricks)
        # This host is in the pool already.
        pool = {self.params["own"], *(name for peer in self._peers() for name in peer["names"])}
        strangers = [address for address in (brick.partition(":/")[0] for brick in self.bricks) if address not in pool]
        existing = self._existing()
        options = self._missing_options(existing)
        todo = [f"take in {address}" for address in strangers]
        todo += [] if existing else ["create the volume"]
        todo += ["let the cluster's hosts in"] if not ENCRYPT.keys() >= options.keys() else []
        todo += ["encrypt the volume"] if not ENCRYPT.keys().isdisjoint(options) else []
        todo += [] if existing and existing["started"] and "encrypt the volume" not in todo else ["start the volume"]
        if todo and not self.module.check_mode:
            for address in strangers:
                self._probe(address)
            self._wait_for_peers()
            if not existing:
                replica = ["replica", str(self.params["replica"])] if self.params["replica"] else []
                # force: the brick may be on the system's disk.
                self._must("volume", "create", self.name, *replica, *self.bricks, "force")
                self._remember("volumes", self.name)
            if existing and existing["started"] and "encrypt the volume" in todo:
                self._must("volume", "stop", self.name, "force")
            if options:
                self._must("volume", "set", self.name, *(word for option in options.items() for word in option))
            if "start the volume" in todo:
                self._must("volume", "start", self.name)
        bricks, shown = existing["bricks"] if existing else self.bricks, {}
        if bricks != self.bricks:
            shown["show"] = (
                f"warning: the volume {self.name} keeps the servers that it was made with: {', '.join(bricks)}. To spread it "
                "over the inventory's hosts anew, as is needed when one of those has left it and is trusted no more: "
                "provision.yml -e state=absent (its files go), then provision.yml again"
            )
        self.end(todo, bricks=bricks, **shown)

    def absent(self):
        """Delete a volume that was created here, and leave a pool that was made here."""
        record = self.record.read()
        if not record:
            self.end([])
        mine, members = self.name in record.get("volumes", []), record.get("peers", [])
        todo = [f"delete the volume {self.name}"] if mine else []
        todo += [f"let {address} go" for address in members]
        if not self.module.check_mode:
            if self.module.get_bin_path("gluster") is not None:
                self._dissolve(mine, members)
            self.record.remove()
        self.module.exit_json(changed=True, did=todo)

    def _dissolve(self, mine, members):
        """Stop and delete the volume; servers without any other volume leave the pool."""
        existing = self._existing() if mine else None
        if existing:
            if existing["started"]:
                self._must("volume", "stop", self.name, "force")
            self._must("volume", "delete", self.name)
        pool = {name for peer in self._peers() for name in peer["names"]}
        if not self._answer("volume", "info").findall(".//volume"):
            for address in members:
                if address in pool:
                    self._must("peer", "detach", address, "force")

    def _missing_options(self, existing):
        """Options of the volume that differ from the wanted ones."""
        allowed, names = ",".join([*self.params["allow"], "127.0.0.1"]), ",".join(self.params["names"])
        wanted = {"auth.allow": allowed, "auth.ssl-allow": names, **ENCRYPT}
        return {name: value for name, value in wanted.items() if not existing or existing["options"].get(name) != value}

    def _existing(self):
        """Bricks, options and state of the volume; None if there is none."""
        for entry in self._answer("volume", "info").iter("volume"):
            if entry.findtext("name") == self.name:
                options = {option.findtext("name"): option.findtext("value") for option in entry.iter("option")}
                bricks = [brick.findtext("name") or brick.text for brick in entry.iter("brick")]
                return {"bricks": bricks, "options": options, "started": entry.findtext("statusStr") == "Started"}
        return None

    def _peers(self):
        """The pool's other members: names, whether they take part, whether they are reachable."""
        return [
            {
                "names": [node.text for node in peer.iter("hostname")],
                "joined": peer.findtext("state") == IN_CLUSTER,
                "connected": peer.findtext("connected") == "1",
            }
            for peer in self._answer("peer", "status").iter("peer")
        ]

    def _probe(self, address):
        """Add a server to the pool, and record it."""
        code, out, error = self._gluster("peer", "probe", address)
        if code != 0:
            self.fail(
                f"{address} can't be taken into GlusterFS's pool: {(out + error).strip()}. "
                "Is its port 24007 reachable from here, and is it in no other pool (sudo gluster peer status)?"
            )
        self._remember("peers", address)

    def _wait_for_peers(self):
        """Wait until every server takes part."""
        deadline = time.monotonic() + JOIN_S
        while late := [peer["names"][0] for peer in self._peers() if not (peer["joined"] and peer["connected"])]:
            if time.monotonic() > deadline:
                self.fail(
                    f"GlusterFS on {', '.join(late)} has not joined within {JOIN_S} s; "
                    "look there at: journalctl -u glusterd; then run provision.yml again"
                )
            time.sleep(0.5)

    def _answer(self, *arguments):
        code, out, error = self._gluster("--xml", *arguments)
        if code != 0 or not out.strip():
            self.fail(f"`gluster {' '.join(arguments)}` failed: {(error or out).strip()}; look at: journalctl -u glusterd")
        return ElementTree.fromstring(out)  # noqa: S314 - gluster itself wrote it

    def _gluster(self, *arguments):
        return self.module.run_command(["gluster", "--mode=script", *arguments])

    def _must(self, *arguments):
        self.run("gluster", "--mode=script", *arguments)

    def _remember(self, kind, name):
        record = self.record.read()
        self.record.write({**record, kind: sorted({*record.get(kind, []), name})})


if __name__ == "__main__":
    main()
