"""Put the published dataset and the trainer package where every worker reads them, unless they are there as published."""

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from control.remote import trainer_package
from control.remote.shared_folder import Item, SharedFolder
from plugins.shared.base_action import Action
from trainer.common.files import sha256_file


class ActionModule(Action):
    """Runs on one host: with the distributed file system, one copy is enough for all.

    What is published is the fact `published`.
    """

    def act(self, path: str, host: str, published: dict[str, Any], whole: bool = False) -> dict[str, Any]:
        """Look, and send what is missing or was changed."""
        return {"changed": distribute(self, published, path, host, bool(whole))}


def distribute(action: Action, published: dict[str, Any], path: str, host: str, whole: bool = False) -> bool:
    """Send what is missing below `path` on a host or was changed there, with a warning of the latter; whether anything was sent."""
    code = Item("the trainer", Path(published["code"]), f"{path}/code/{published['code_name']}", published["code_sha256"])
    dataset = Item("the dataset", Path(published["folder"]), f"{path}/datasets/{published['name']}", published["manifest"])
    folder = SharedFolder(action, host)
    folder.agree([code, *_others(published, path)], dataset if published["manifest"] else None, whole)
    if warning := folder.warning():
        action.show(warning)
    return bool(folder.sent or folder.replaced)


def _others(published: dict[str, Any], path: str) -> list[Item]:
    """The archive of a user's script, or a file of weights, if there is one."""
    given = [(kind, published[kind]) for kind in ("script", "weights") if published.get(kind)]
    return [Item(f"the {kind}", Path(one["local"]), f"{path}/code/{one['name']}", one["sha256"]) for kind, one in given]


def published_for(run: dict[str, Any], packs: Path) -> dict[str, Any]:
    """Published data of a launched run, in the form that `publish_dataset` returns.

    Args:
        run: its name `run`, `dataset`, `code` and the code's digest; launches of an early version have no digest.
        packs: folder of published datasets on the control node.

    Raises:
        AnsibleActionFail: the code's digest is unknown.
    """
    code, dataset = packs.parent / "code" / run["code"], run["dataset"]
    if run["code"] == trainer_package.TRAINER.file_name(trainer_package.TRAINER.sha256()):
        trainer_package.TRAINER.build(code.parent)
    sha256 = run.get("code_sha256") or (sha256_file(code) if code.is_file() else "")
    if not sha256:
        raise AnsibleActionFail(
            f"run={run['run']}: an earlier version launched it and recorded no digest of its code, so the shared folder's copy can't "
            f"be checked. Fix: continue the training, which publishes the code again: ansible-playbook train.yml -e run={run['run']} "
            "-e epochs=N"
        )
    return {
        "digest": dataset["digest"],
        "folder": str(packs / dataset["folder_name"]),
        "name": dataset["folder_name"],
        "manifest": dataset.get("manifest", ""),
        "code": str(code),
        "code_name": run["code"],
        "code_sha256": sha256,
    }
