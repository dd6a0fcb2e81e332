"""Gather the wheels that the hosts will install, on the control node, with progress; refuse hosts that could not install them."""

from typing import Any

from ansible.utils.display import Display

from control import command_line, project
from control.progress import Line
from control.provision import provisioning, wheels
from control.task import Task


class GatherWheels(Task):
    """Returns the fact `provision_wheels`: by kind of host (`x86_64-cp311`) folder, digest, size, whether uv is among them."""

    def act(self) -> dict[str, Any]:
        """Gather what is missing."""
        hosts = self.arguments["hosts"]
        targets = wheels.merged(wheels.Target(**host["target"]) for host in hosts.values())
        locks = {name: _pins(name) for name in {target.lock for target in targets} | {"control"}}
        uv = next((pin for pin in locks["control"] if pin.name == "uv"), None)
        line, by_kind, changed = Line(Display(), command_line.terminal(), every=2.0), {}, False
        for target in targets:
            gathering = wheels.Gathering(target, locks[target.lock], uv, project.PRIVATE / "wheels" / target.key, line.update)
            index = gathering.complete()
            if index is None and not self.check_mode:
                index, changed = gathering.gather(), True
                line.print(f"wheels for {target.key}: {len(index['wheels'])}, {_megabytes(index):,.0f} MB")
            by_kind[target.key] = _fact(gathering, index)
        line.end()
        provisioning.refuse(provisioning.venv_refusals(hosts, by_kind))
        return {"changed": changed, "ansible_facts": {"provision_wheels": by_kind}}


def _pins(name: str) -> list[wheels.Pin]:
    return wheels.pins((project.ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8"))


def _fact(gathering: wheels.Gathering, index: dict[str, Any] | None) -> dict[str, Any]:
    if index is None:
        return {"folder": str(gathering.folder), "digest": "", "name": gathering.target.key, "uv": True}
    digest = wheels.digest(index)
    return {"folder": str(gathering.folder), "digest": digest, "name": f"{gathering.target.key}-{digest}", "uv": bool(index["uv"])}


def _megabytes(index: dict[str, Any]) -> float:
    return sum(entry["size"] for entry in index["wheels"].values()) / 1e6
