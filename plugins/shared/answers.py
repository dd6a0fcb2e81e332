"""Answers of Ansible's own modules: a host may be in another's hands, and Ansible obeys some fields of a result."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.remote.answers import LARGEST
from trainer.terminal import printable

ORDERS = re.compile(
    r"_ansible_.*|ansible_facts|ansible_stats|add_host|add_group"  # Ansible's
    r"|show|show_last|if_interrupted|before_start|launch_begun|run_under_way"  # read by plugins/callback/lockstep.py
)
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
            raise AnsibleActionFail(
                f"the host answers {printable(name, 40)}=..., which is refused: no module used here does; see who controls that host"
            )


def guard_ansible() -> None:
    """Make every action check what a host answers to a module that Ansible sent, also Ansible's own (`copy`, `command`)."""
    parse: Parse = ActionBase._parse_returned_data
    if hasattr(parse, "__wrapped__"):
        return

    @functools.wraps(parse)
    def parsed(action: Any, res: dict[str, Any], profile: str) -> dict[str, Any]:
        if len(written := str(res.get("stdout", ""))) > LARGEST:
            raise AnsibleActionFail(f"an answer of {len(written):,} characters is refused; {LARGEST:,} is the most")
        answer = parse(action, res, profile)
        refuse_orders({name: value for name, value in answer.items() if name != "_ansible_parsed"})
        return answer

    ActionBase._parse_returned_data = parsed
