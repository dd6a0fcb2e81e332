"""Compare the lab's present and intended state; refuse what is impossible."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import command_line, project, text
from control.common.task import Task
from control.lab import containers, lab_inventory
from control.lab.containers import Engine
from trainer.common.errors import ConfigError, LockstepError

MINE = lab_inventory.owner(str(project.ROOT))
PLACE = project.PRIVATE / "lab"
INVENTORY = project.ROOT / "inventory" / "lab"
RECIPE = project.ROOT / "roles" / "lab" / "files" / "image"
SCRATCH_FOLDER, SCRATCH = Path("/var/tmp"), "lockstep-lab"  # noqa: S108 - ansible's tempfile makes it safely; no path with spaces
CERTIFICATES = Path("/usr/local/share/ca-certificates")
NOT_ROOT = (
    "the lab gives containers addresses, CPU shares and mounts of their own, which needs root here; run it as root, as in "
    'sudo env "PATH=$PATH" ansible-playbook lab.yml'
)
NO_ENGINE = "the lab needs containers: this machine has no podman and no docker that answers; install podman and run lab.yml again"


def plan(task: Task) -> dict[str, Any]:
    """Returns the fact `lab`, which the role's tasks follow. Changes nothing."""
    _refuse_other_project(Path(task.arguments["project"]))
    wanted = lab_inventory.settings(command_line.operator_options("lab", task.task_vars), len(os.sched_getaffinity(0)))
    options = {name: str(task.arguments[name]) for name in ("prefix", "subnet", "base_image")}
    nodes = lab_inventory.nodes(wanted["cpus"], options["prefix"], options["subnet"])
    if os.geteuid() != 0:
        raise LockstepError(NOT_ROOT)
    engine = containers.find()
    seen = Seen(engine, *((engine.labs(), engine.names(), engine.networks(), engine.images()) if engine else ([], [], [], [])))
    changes = _present(seen, wanted, options, nodes) if wanted["state"] == "present" else _absent(seen, wanted["image"] == "absent")
    plan = {
        "settings": wanted,
        "engine": engine.name if engine else "podman",
        "owner": MINE,
        "project": str(project.ROOT),
        "scratch_folder": str(SCRATCH_FOLDER),
        "place": str(PLACE),
        "inventory": str(INVENTORY),
        **changes,
    }
    return {"changed": False, "show": _shown(plan), "ansible_facts": {"lab": plan}}


def _refuse_other_project(called: Path) -> None:
    """A .venv belongs to one project; called from another one it would change the first one's lab."""
    if called.resolve() != project.ROOT:
        raise LockstepError(
            f"this ansible-playbook belongs to the project {project.ROOT}, not {called}; run make setup there and use its .venv"
        )


@dataclass(frozen=True)
class Seen:
    """The state of this machine's engine."""

    engine: Engine | None
    labs: list[dict[str, Any]]
    names: list[str]
    networks: list[dict[str, Any]]
    images: list[str]

    def own(self) -> list[dict[str, Any]]:
        """Containers of this project's lab."""
        return [each for each in self.labs if each["labels"][lab_inventory.OWNER_LABEL] == MINE]

    def abandoned(self) -> list[str]:
        """A line for each lab whose project's folder is no more, with the command that removes what is left of it."""
        return lab_inventory.abandoned(self.engine.name if self.engine else "podman", self.labs, self.networks)


def _present(seen: Seen, wanted: Mapping[str, Any], options: Mapping[str, str], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    image = f"{containers.IMAGE}:{lab_inventory.recipe_digest([options['base_image'].encode(), *_recipe()])}"
    builds = image not in seen.images
    conf = containers.needed_conf()
    try:
        exists = lab_inventory.check_network(options["prefix"], options["subnet"], MINE, seen.networks, containers.routes())
        changes = lab_inventory.changes(nodes, wanted["memory"], MINE, seen.labs, seen.names)
    except ConfigError as error:
        raise ConfigError("\n".join([str(error), *seen.abandoned()])) from None
    return {
        **changes,
        "nodes": nodes,
        "limits": {"period": lab_inventory.CPU_PERIOD_US, "memory": wanted["memory"]},
        "packages": _packages(seen.engine, builds),
        "conf": conf,
        "environment": {"CONTAINERS_CONF": str(PLACE / "containers.conf")} if conf else {},
        "network": {"name": options["prefix"], "subnet": options["subnet"], "exists": exists},
        "image": {"name": image, "builds": builds, **(_archives(seen.images) if builds else {})},
        "older": [each["container"] for each in seen.own() if each["image"] != image],
        "stale_folders": _stale([node["name"] for node in nodes]),
        "scratch": f"{SCRATCH}-{MINE}-",
        "fuse": Path("/dev/fuse").exists(),
    }


def _absent(seen: Seen, images_too: bool) -> dict[str, Any]:
    others = sorted({str(each["labels"].get(lab_inventory.PROJECT_LABEL)) for each in seen.labs if each not in seen.own()})
    images = seen.images if images_too and not others else []
    return {
        "remove": [each["container"] for each in seen.own()],
        "networks": [each["name"] for each in seen.networks if each["labels"].get(lab_inventory.OWNER_LABEL) == MINE],
        "images": images,
        "kept": [] if images else seen.images,
        "others": others,
        "abandoned": seen.abandoned(),
        "environment": {},
        "stale_folders": _stale([]),
    }


def _packages(engine: Engine | None, builds: bool) -> list[str]:
    """Packages to install first.

    Raises:
        LockstepError: packages are missing, and this machine does not use apt.
    """
    packages = containers.missing_packages(engine, builds)
    if packages and not containers.may_install(_os_release()):
        raise LockstepError(NO_ENGINE if engine is None else f"the lab needs {', '.join(packages)}; install it and run lab.yml again")
    return packages


def _os_release() -> dict[str, str]:
    """os-release of this machine; empty where there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _recipe() -> list[bytes]:
    return [file.read_bytes() for file in sorted(RECIPE.iterdir())]


def _archives(images: list[str]) -> dict[str, Any]:
    """The sources of this machine's packages, from which the image takes its packages, too."""
    release = _os_release()
    codename = release.get("VERSION_CODENAME", "")
    targets = containers.apt_answer("apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)")
    lines = lab_inventory.apt_settings(containers.apt_answer("apt-config", "dump"))
    bootstrapped = f"{containers.BASE}:{codename}"
    return {
        **lab_inventory.package_sources(targets, codename),
        "bootstrapped": bootstrapped,
        "bootstraps": bootstrapped not in images,
        "codename": codename,
        "distribution": release.get("ID", ""),
        "apt": lines,
        "proxies": lab_inventory.proxy_environment(lines),
        "certificates": sorted(str(file) for file in CERTIFICATES.rglob("*.crt")) if CERTIFICATES.is_dir() else [],
    }


def _stale(names: list[str]) -> list[str]:
    """Folders of removed nodes, and leftovers of image builds by a killed lab.yml."""
    folder, scratch = PLACE / "nodes", SCRATCH_FOLDER.glob(f"{SCRATCH}-{MINE}-*")
    gone = [each for each in folder.iterdir() if each.name not in names] if folder.is_dir() else []
    return sorted(str(each) for each in [*gone, *scratch])


def _shown(plan: dict[str, Any]) -> str:
    """The planned changes for the user; with `--check` this is all."""
    if plan["settings"]["state"] == "absent":
        names = plan["remove"] + plan["networks"] + plan["images"]
        return "Lab: to remove\n" + text.fields([("engine", ", ".join(names) or "nothing"), ("files", f"{PLACE}, {INVENTORY}")])
    steps = [("install", plan["packages"])] + [(verb, plan[verb]) for verb in ("create", "start", "adjust", "remove")]
    pairs = [(verb, ", ".join(names)) for verb, names in steps if names]
    if plan["image"]["builds"]:
        pairs.append(("build", f"{plan['image']['name']}, once: about a minute"))
    return "Lab: what has to change\n" + text.fields(pairs) if pairs else "Lab: all nodes are there"
