"""Answers of Ansible's own modules: a host may be in another's hands, and Ansible obeys some fields of a result."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins import action
from ansible.plugins.action import ActionBase

from control.remote.answers import LARGEST, SUSPECT
from trainer.common.safe_text import printable

ORDERS = re.compile(
    r"_ansible_.*|ansible_facts|ansible_stats|add_host|add_group"  # Ansible's
    r"|show|show_last|if_interrupted|before_start|launch_begun|run_under_way"  # read by plugins/callback/lockstep.py
)
PYTHON = re.compile(r"/[A-Za-z0-9._+/-]{1,200}")
Discover = Callable[..., str]
Parse = Callable[[Any, dict[str, Any], str], dict[str, Any]]


def refuse_orders(answer: Mapping[str, Any]) -> None:
    """Refuse a module's answer that would change variables, hosts or what the command does.

    Facts of a host outrank the inventory's variables and replace the plan: with them it could choose which files of this machine are
    sent to it. No task of this project gathers facts by Ansible's modules.

    Raises:
        AnsibleActionFail: with the field's name.
    """
    for name in answer:
        if ORDERS.fullmatch(str(name)):
            raise AnsibleActionFail(f"the host answers {printable(name, 40)}=..., which is refused: no module used here does; {SUSPECT}")


def guard_ansible() -> None:
    """Make every action check what a host answers to a module that Ansible sent, also Ansible's own (`copy`, `command`)."""
    if not hasattr(ActionBase._parse_returned_data, "__wrapped__"):
        ActionBase._parse_returned_data = _without_orders(ActionBase._parse_returned_data)
        action.discover_interpreter = _as_a_path(action.discover_interpreter)


def _without_orders(parse: Parse) -> Parse:
    @functools.wraps(parse)
    def parsed(self: Any, res: dict[str, Any], profile: str) -> dict[str, Any]:
        if len(written := str(res.get("stdout", ""))) > LARGEST:
            raise AnsibleActionFail(f"an answer of {len(written):,} characters is refused; {LARGEST:,} is the most")
        answer = parse(self, res, profile)
        refuse_orders({name: value for name, value in answer.items() if name != "_ansible_parsed"})
        return answer

    return parsed


def _as_a_path(discover: Discover) -> Discover:
    """Where a host says its Python is: Ansible begins a shell's line with it, after a task for all hosts (`run_once`) on each of them."""

    @functools.wraps(discover)
    def discovered(*arguments: Any, **named: Any) -> str:
        path = discover(*arguments, **named)
        if not PYTHON.fullmatch(path):
            raise AnsibleActionFail(f"the host answers that its Python is {printable(path, 80)!r}, which is no path; {SUSPECT}")
        return path

    return discovered
