"""Gather the wheels that the hosts will install, on the control node, with progress; refuse hosts that could not install them."""

from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control.common import command_line, project
from control.common.progress_line import Line
from control.common.task import Task
from control.provision import findings, requirements, wheels


def gather_wheels(task: Task) -> dict[str, Any]:
    """Returns the fact `provision_wheels`: by kind of host (`x86_64-cp311`) folder, digest, sums of its files, whether uv is among them."""
    hosts = task.arguments["hosts"]
    targets = wheels.merged(wheels.Target(**host["target"]) for host in hosts.values())
    locks = {name: _pins(name) for name in {target.lock for target in targets} | {"control"}}
    given = str(task.arguments["requirements"] or "")
    own = {
        target.key: requirements.lock(Path(given), locks[target.lock], target, project.PRIVATE / "requirements")
        for target in (targets if given else ())
    }
    uv = next((pin for pin in locks["control"] if pin.name == "uv"), None)
    line, by_kind, changed = Line(Display(), command_line.terminal(), every=2.0), {}, False
    for target in targets:
        wanted = [*locks[target.lock], *own.get(target.key, ())]
        gathering = wheels.Gathering(target, wanted, uv, project.PRIVATE / "wheels" / target.key, line.update)
        index = gathering.complete()
        if index is None and not task.check_mode:
            index, changed = gathering.gather(), True
            size = sum(entry["size"] for entry in index["wheels"].values())
            line.print(f"wheels for {target.key}: {len(index['wheels'])}, {size / 1e6:,.0f} MB")
        by_kind[target.key] = _fact(gathering, index)
    line.end()
    if lacking := sorted({name for pins in own.values() for name in requirements.missing_here(pins)}):
        names = ", ".join(lacking)
        task.warn([f"requirements={given}: this machine tries models and data, too, lacks {names}: make setup REQUIREMENTS={given}"])
    findings.refuse(findings.venv_refusals(hosts, by_kind))
    return {"changed": changed, "ansible_facts": {"provision_wheels": by_kind}}


def _pins(name: str) -> list[wheels.Pin]:
    return wheels.pins((project.ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8"))


def _fact(gathering: wheels.Gathering, index: dict[str, Any] | None) -> dict[str, Any]:
    if index is None:
        return {"folder": str(gathering.folder), "digest": "", "name": gathering.target.key, "uv": True, "sums": {}}
    digest, sums = wheels.digest(index), wheels.sums(index, gathering.folder)
    named = {"name": f"{gathering.target.key}-{digest}", "folder": str(gathering.folder)}
    return {**named, "digest": digest, "uv": bool(index["uv"]), "sums": sums}
