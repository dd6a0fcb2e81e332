"""The worker's Python and its packages: installed, supported, and the same on every host."""

from collections.abc import Iterator
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Requirement, odd

EQUAL = {"tensorflow": FAIL, "keras": FAIL, "numpy": WARN}


def python(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Check:
    """The worker's Python: installed, of a supported version, with TensorFlow."""
    found, name = facts["python"], host["name"]
    (low, high), provision = need.python, f"ansible-playbook -i {need.inventory} provision.yml"
    limit = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    if found.get("error"):
        return Check(FAIL, name, "python", f"{found['path']} {found['error']}", limit, f"{provision}, or set worker_python")
    if not _supported(found, need):
        return Check(
            FAIL, name, "python", f"{found['version']} ({found['path']})", limit, "install one of these and set worker_python to it"
        )
    if not tensorflow(found["packages"]):
        return Check(FAIL, name, "python", f"no TensorFlow in {found['path']}", "requirements/node.txt", provision)
    return Check(OK, name, "python", f"{found['version']}, TensorFlow {tensorflow(found['packages'])}", limit)


def _supported(found: dict[str, Any], need: Requirement) -> bool:
    return need.python[0] <= tuple(int(part) for part in found["version"].split(".")[:2]) <= need.python[1]


def tensorflow(packages: dict[str, str]) -> str:
    """Version of TensorFlow under either of its names, or empty."""
    return packages.get("tensorflow") or packages.get("tensorflow-cpu") or ""


def equal_packages(facts: Facts, need: Requirement) -> Iterator[Check]:
    """The same versions on every host, of packages and of Python itself."""
    working = {name: found for name, found in facts.items() if "packages" in found["python"]}
    complete = {name: found for name, found in working.items() if tensorflow(found["python"]["packages"])}
    for package, level in EQUAL.items():
        yield from _equal_versions({name: _version(found, package) for name, found in complete.items()}, package, level, need)
    supported = {name: found["python"]["version"] for name, found in working.items() if _supported(found["python"], need)}
    minor = {name: ".".join(version.split(".")[:2]) for name, version in supported.items()}
    fix = "use one version everywhere, so that results can be repeated"
    for name, usual in odd(minor):
        yield Check(WARN, name, "python", f"{minor[name]}, the others {usual}", usual, fix)


def _version(facts: dict[str, Any], package: str) -> str:
    packages = facts["python"]["packages"]
    return tensorflow(packages) if package == "tensorflow" else packages.get(package, "")


def _equal_versions(versions: dict[str, str], package: str, level: str, need: Requirement) -> Iterator[Check]:
    for name, usual in odd(versions):
        value = f"{versions[name] or 'missing'}, the others {usual or 'without'}"
        fix = f"ansible-playbook -i {need.inventory} provision.yml (installs the locked versions)"
        yield Check(level, name, package, value, usual, fix)
