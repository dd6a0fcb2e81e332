"""The worker's Python and its packages: installed, supported, and the same on every host."""

from collections.abc import Iterator

from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Requirement, Subject, odd

PYTHON = ((3, 11), (3, 13))
"""The first and last supported version."""
EQUAL = {"tensorflow": FAIL, "keras": FAIL, "numpy": WARN}


def python(subject: Subject) -> Iterator[Check]:
    """The worker's Python: installed, of a supported version, with TensorFlow."""
    facts, need = subject.facts["python"], subject.need
    limit = " to ".join(f"{major}.{minor}" for major, minor in PYTHON)
    if facts.get("error"):
        yield subject.check(FAIL, "python", f"{facts['path']} {facts['error']}", limit, f"{need.provision}, or set worker_python")
    elif not _supported(facts["version"]):
        fix = "install one of these and set worker_python to it"
        yield subject.check(FAIL, "python", f"{facts['version']} ({facts['path']})", limit, fix)
    elif not tensorflow(facts["packages"]):
        yield subject.check(FAIL, "python", f"no TensorFlow in {facts['path']}", "requirements/node.txt", need.provision)
    else:
        yield subject.check(OK, "python", f"{facts['version']}, TensorFlow {tensorflow(facts['packages'])}", limit)


def _supported(version: str) -> bool:
    return PYTHON[0] <= tuple(int(part) for part in version.split(".")[:2]) <= PYTHON[1]


def tensorflow(packages: dict[str, str]) -> str:
    """Version of TensorFlow under either of its names, or empty."""
    return packages.get("tensorflow") or packages.get("tensorflow-cpu") or ""


def equal_packages(facts: Facts, need: Requirement) -> Iterator[Check]:
    """The same versions on every host, of packages and of Python itself."""
    working = {name: host["python"] for name, host in facts.items() if "packages" in host["python"]}
    complete = {name: {**one["packages"], "tensorflow": tensorflow(one["packages"])} for name, one in working.items()}
    complete = {name: packages for name, packages in complete.items() if packages["tensorflow"]}
    for package, level in EQUAL.items():
        versions = {name: packages.get(package, "") for name, packages in complete.items()}
        for name, usual in odd(versions):
            value = f"{versions[name] or 'missing'}, the others {usual or 'without'}"
            yield Check(level, name, package, value, usual, f"{need.provision} (installs the locked versions)")
    minor = {name: ".".join(one["version"].split(".")[:2]) for name, one in working.items() if _supported(one["version"])}
    fix = "use one version everywhere, so that results can be repeated"
    for name, usual in odd(minor):
        yield Check(WARN, name, "python", f"{minor[name]}, the others {usual}", usual, fix)
