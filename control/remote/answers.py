"""Checks of a host's answers to this project's modules: the host may be in another's hands.

Ansible obeys some fields of a module's result (`add_host`, `ansible_facts`, `_ansible_...`), and so do this project's commands
(`launch_begun`). So an answer has only the fields that the module's RETURN documents, each of its type. Where this machine computes with
what is inside a field, that has a schema here.
"""

import functools
import re
from typing import Any

import yaml

from control.common.project import ROOT
from control.remote import worker_files
from control.remote.worker_files import Check, count, each, holding, none_or, number, text
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.host import sealed_files
from trainer.host.claims import RUN_NAME, SESSION, TICKET

MODULES = ROOT / "plugins" / "modules"
LARGEST = 4 * 2**20
"""Characters of an answer."""
FEW = 10_000
SUSPECT = "see who controls that host"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The first is ten times as fast: a module's documentation is read for each host."""


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _version(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{1,4}\.\d{1,4}[\w.+-]{0,40}", value) is not None


def _run_name(value: Any) -> bool:
    return isinstance(value, str) and RUN_NAME.fullmatch(value) is not None


def _state_name(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and sealed_files.step_of(value) >= 0)


def _by_text(check: Check) -> Check:
    """A check that a value is a dict with short names whose values all pass `check`."""
    return lambda value: isinstance(value, dict) and len(value) <= FEW and all(map(text, value)) and all(map(check, value.values()))


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _only(fields: dict[str, Check]) -> Check:
    """A check that a value is a dict with exactly these fields."""
    return lambda value: isinstance(value, dict) and value.keys() == fields.keys() and all(fields[name](one) for name, one in value.items())


COMMON: dict[str, Check] = {**dict.fromkeys(("changed", "failed", "skipped"), _flag), **dict.fromkeys(("msg", "show"), _string)}
"""Fields of every module's answer, none of them required."""
TYPES: dict[str, Check] = {
    "bool": _flag,
    "str": _string,
    "list": each(text, FEW),
    "dict": lambda value: isinstance(value, dict),
    "float": number,
}
"""By the type that RETURN documents."""
_ERROR = holding({"error": text})
_ADDRESSES = each(text, FEW)
_MOUNTED: dict[str, Check] = dict.fromkeys(("path", "mount", "type", "source"), text)
_FOLDER: dict[str, Check] = {**_MOUNTED, "free_mb": count, "writable": _flag, "exists": _flag}
_SESSION: dict[str, Check] = {"number": count, "run": _run_name, "session": text}
_PACKAGES = _by_text(text)
_PORT = _either(
    holding({**_SESSION, "state": lambda value: value == "held"}),
    holding({"number": count, "state": lambda value: value == "busy", "process": text}),
    holding({"number": count, "state": lambda value: value in ("free", "forbidden")}),
)
_HOST = {
    **dict.fromkeys(("hostname", "user", "machine", "os", "model"), text),
    "cores": count,
    **dict.fromkeys(("cpus", "load", "seconds", "time"), number),
    **dict.fromkeys(("cpu_quota", "temperature", "speed"), none_or(number)),
    "memory": holding(dict.fromkeys(("total_mb", "available_mb"), count)),
    "disk": holding({**_FOLDER, "need_mb": count}),
    **dict.fromkeys(("tmux", "boot"), none_or(text)),
    "python": _either(holding({"path": text, "version": _version, "packages": _PACKAGES}), holding({"path": text, "error": text})),
    "port": _PORT,
    **dict.fromkeys(("direct_port", "server_port"), none_or(_PORT)),
    **dict.fromkeys(("governors", "gpus"), each(text, FEW)),
    "throttled": none_or(holding(dict.fromkeys(("now", "since_boot"), each(text, 10)))),
    "dfs": none_or(_either(_ERROR, holding({**_FOLDER, "kind": text}))),
    "name": _either(_ERROR, holding({"addresses": _ADDRESSES})),
    "address": _either(_ERROR, holding({"given": text, "addresses": _ADDRESSES, "own": _flag, "all": _ADDRESSES})),
    "tokens": each(
        _either(holding({"path": text, "error": text}), holding({"path": text, "bytes": count, "sha256": worker_files.digest})), FEW
    ),
}
_PAIR = _either(
    holding({"reachable": lambda value: value is False, "kind": text, "error": text}),
    holding({"reachable": lambda value: value is True, **dict.fromkeys(("rtt_ms", "rtt_min_ms", "clock_s"), number)}),
)
_PAIR_TYPES: dict[str, Check] = {
    **dict.fromkeys(("rtt_ms", "rtt_min_ms", "clock_s", "mbit_s"), none_or(number)),
    **dict.fromkeys(("mtu", "port"), count),
    "mtu_trouble": _flag,
    "error": text,
}


def _pair(value: Any) -> bool:
    return _PAIR(value) and all(check(value[name]) for name, check in _PAIR_TYPES.items() if name in value)


SCHEMAS: dict[str, dict[str, Check]] = {
    "worker_jobs": {
        "jobs": each(
            _only(
                {
                    "run": _run_name,
                    "state": lambda value: value in ("queued", "running"),
                    "session": lambda value: isinstance(value, str) and SESSION.fullmatch(value) is not None,
                    "ticket": lambda value: value == "" or (isinstance(value, str) and TICKET.fullmatch(value) is not None),
                }
            ),
            FEW,
        )
    },
    "host_probe": {"facts": _only(_HOST)},
    "network_probe": {"pairs": _by_text(_pair), "ring": none_or(_only({"to": text, "mbit_s": number})), "interfaces": _by_text(count)},
    "worker_claim": {
        "holder": none_or(
            _either(
                _only({**_SESSION, "kind": lambda value: value == "port"}),
                _only({"number": count, "kind": lambda value: value in ("port", "direct_port", "server_port"), "process": text}),
            )
        ),
        # They become part of the host's record in cluster.json, and may change nothing else of it.
        "facts": _only(
            {
                "python": _version,
                "packages": _PACKAGES,
                **dict.fromkeys(("machine", "cpu", "executable"), text),
                "cpus": number,
                "cores": lambda value: count(value) and value > 0,
            }
        ),
        "identity": text,
        **dict.fromkeys(("newest_state", "newest_memory"), _state_name),
        "damaged": each(
            _only(
                {
                    "kind": lambda value: value in ("state", "memory"),
                    "name": lambda value: value != "" and _state_name(value),
                    "reason": text,
                }
            ),
            FEW,
        ),
    },
}


@functools.cache
def documented(module: str, block: str) -> dict[str, Any]:
    """Parsed block of a module's documentation, such as RETURN."""
    source = (MODULES / f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^{block} = """(.*?)^"""$', source, re.MULTILINE | re.DOTALL)
    return dict(yaml.load(found[1], Loader=LOADER)) if found else {}  # noqa: S506 - both are safe


def _checks(module: str) -> dict[str, Check]:
    """The checks of the fields that a module may return."""
    typed = {name: none_or(TYPES[one["type"]]) for name, one in documented(module, "RETURN").items()}
    return {**COMMON, **typed, **SCHEMAS.get(module, {})}


def _missing(module: str, answer: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """The fields that this machine counts on and that the answer lacks; with `returned: state=query`, only that state returns a field."""
    if module not in SCHEMAS or answer.get("failed") or answer.get("skipped"):
        return []
    cases = {"always", *(f"{name}={value}" for name, value in arguments.items())}
    returned = documented(module, "RETURN").items()
    return [name for name, one in returned if cases.intersection(one["returned"].split(", ")) and name not in answer]


def believed(module: str, written: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """A module's answer as a host wrote it (JSON); texts are made safe for a terminal.

    Args:
        module: its name.
        written: the answer.
        arguments: what the module was given; None in check mode, in which a module may return less.

    Raises:
        LockstepError: it has a field that the module never returns, or one with a content that it never has, or lacks one.
    """
    if len(written) > LARGEST:
        raise LockstepError(f"{module}: an answer of {len(written):,} characters is refused; {LARGEST:,} is the most")
    answer, checks = worker_files.answer(written, module), _checks(module)
    for name, value in answer.items():
        if name not in checks or not checks[name](value):
            shown = f"{printable(name, 40)}={printable(value, 80)}"
            raise LockstepError(f"{module}: the host answers {shown}, which that module never does; {SUSPECT}")
    if arguments is not None and (missing := _missing(module, answer, arguments)):
        raise LockstepError(f"{module}: the host's answer lacks {missing[0]}, which that module always returns; {SUSPECT}")
    return answer
