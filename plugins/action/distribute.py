"""Put the published dataset and the trainer package where every worker reads them, unless they are there as published."""

from pathlib import Path
from typing import Any

from control.remote.published import Published
from control.remote.shared_folder import Item, SharedFolder
from plugins.shared.base_action import Action
from trainer.common.plain_values import from_plain


class ActionModule(Action):
    """Runs on one host: with the distributed file system, one copy is enough for all.

    What is published is the fact `published`.
    """

    def act(self, path: str, host: str, published: dict[str, Any], whole: bool = False) -> dict[str, Any]:
        """Look, and send what is missing or was changed."""
        return {"changed": distribute(self, from_plain(Published, published), path, host, bool(whole))}


def distribute(action: Action, published: Published, path: str, host: str, whole: bool = False) -> bool:
    """Send what is missing below `path` on a host or was changed there, with a warning of the latter; whether anything was sent."""
    files = [Item("the trainer", Path(published.code), f"{path}/code/{published.code_name}", published.code_sha256)]
    files += [Item(f"the {kind}", Path(one.local), f"{path}/code/{one.name}", one.sha256) for kind, one in published.others.items()]
    dataset = Item("the dataset", Path(published.folder), f"{path}/datasets/{published.name}", published.manifest)
    folder = SharedFolder(action, host)
    folder.agree(files, dataset if published.manifest else None, whole)
    if warning := folder.warning():
        action.show(warning)
    return bool(folder.sent or folder.replaced)
