"""The action of a task for another host, over a connection of its own, where one process serves several hosts."""

from typing import Any

from ansible.executor.task_executor import TaskExecutor
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader
from ansible.template import Templar


def action_for(action: Any, name: str) -> ActionBase:
    """An action as `action`, on the host of this name in the inventory; it connects once it does something there."""
    hostvars = action.task_vars["hostvars"]
    manager, host, task = hostvars._variable_manager, hostvars._inventory.get_host(name), action._task
    variables = manager.get_vars(play=task.play, host=host, task=task)
    templar = Templar(loader=action._loader, variables=variables)
    context = action._play_context.set_task_and_variable_override(task=task, variables=variables, templar=templar)
    context.remote_addr = variables.get("ansible_host", name)
    executor = TaskExecutor(host, task, variables, context, action._loader, action._shared_loader_obj, None, manager)
    kind = variables.get("ansible_connection")
    executor._connection = executor._get_connection(variables, templar, templar.template(kind) if kind else task.connection)
    executor._set_connection_options(variables, templar)
    made: Any = action_loader.get(
        "normal",
        task=task,
        connection=executor._connection,
        play_context=context,
        loader=action._loader,
        templar=templar,
        shared_loader_obj=action._shared_loader_obj,
    )
    made.task_vars = variables
    return made
