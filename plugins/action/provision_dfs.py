"""Check what the inventory says of the distributed file system, before any host is touched."""

from typing import Any

from plugins.filter import provision
from plugins.shared import control
from trainer.errors import ConfigError


class ActionModule(control.ControlAction):
    """Adds `kind` to the fact `provision`."""

    def act(self) -> dict[str, Any]:
        """Refuse what can't be had."""
        plan = self.arguments["plan"]
        kind = check_kind(self.arguments, plan["members"])
        folders = {"dfs_path": str(self.arguments["path"]), **({"dfs_brick": str(self.arguments["brick"])} if kind == "glusterfs" else {})}
        # What an older inventory made must stay removable.
        for host, root in self.arguments["roots"].items() if plan["state"] == "present" else ():
            provision.check_apart(host, str(root), folders)
        return {"ansible_facts": {"provision": {**plan, "kind": kind}}}


def check_kind(arguments: dict[str, Any], members: list[dict[str, Any]]) -> str:
    """The kind of the distributed file system, when it can be had on these hosts."""
    kind = str(arguments["kind"])
    if kind not in provision.KINDS:
        raise ConfigError(f"dfs_kind={kind}: expected one of {', '.join(provision.KINDS)}")
    if not str(arguments["path"]).startswith("/"):
        raise ConfigError(f"dfs_path={arguments['path']}: expected an absolute path, the same on every host")
    if kind == "local" and len(members) > 1:
        raise ConfigError(
            f"dfs_kind=local: {len(members)} hosts can't share a folder of one of them; set dfs_kind to glusterfs (provision.yml makes it) "
            "or mounted (a path that is shared already: NFS, CephFS, Lustre, ...)"
        )
    six = [member for member in members if ":" in str(member["address"])]
    if kind == "glusterfs" and six:
        raise ConfigError(
            f"dfs_kind=glusterfs: {six[0]['name']} has the address {six[0]['address']}; a GlusterFS volume made here takes IPv4 addresses "
            "or names; set worker_address to one, or share a folder in another way (dfs_kind: mounted)"
        )
    provision.dfs_servers(members, arguments["layout"], arguments["replicas"])
    return kind
