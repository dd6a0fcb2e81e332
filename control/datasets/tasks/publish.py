"""Publish the plan's dataset and trainer package on the control node, with progress."""

from pathlib import Path
from typing import Any

from control.datasets.publish import place_of
from control.remote import trainer_process
from control.runs import package
from control.task import Task
from trainer import config as configs
from trainer import schedule
from trainer.errors import LockstepError
from trainer.files import sha256_file
from trainer.terminal import printable


class Publish(Task):
    """Returns the fact `published`: digest and folder of the dataset, file of the package."""

    def act(self) -> dict[str, Any]:
        """Publish what is not published yet."""
        plan, packs = self.arguments["plan"], Path(self.arguments["packs"])
        known = plan["dataset"]["digest"]
        found: dict[str, Any] = plan["dataset"] | {"excluded": []} if known else self._publish(plan["config"]["data"], packs)
        replanned = {"plan": without(plan, found)} if found["excluded"] else {}
        if plan["expected_digest"] not in (None, found["digest"]):
            raise LockstepError(
                f"run={plan['run']}: its dataset was {plan['expected_digest'][:16]}, the one given now is {found['digest'][:16]}: "
                "images were added, removed or changed. Restore them, or give a new run name."
            )
        archive = package.TRAINER.build(packs.parent / "code")
        left_out = [printable(name) for name, _ in found["excluded"]]
        shown = {"show": f"left out {len(left_out)} images that can't be read: {', '.join(left_out[:5])}"} if left_out else {}
        place = place_of(packs, found["manifest"])
        published = {
            "digest": found["digest"],
            "folder": str(place.folder),
            "name": place.folder.name,
            "manifest": place.sha256,
            "code": str(archive),
            "code_name": archive.name,
            "code_sha256": sha256_file(archive),
        }
        return {"changed": not known, "ansible_facts": {"published": published, **replanned}, **shown}

    def _publish(self, data: dict[str, Any], packs: Path) -> dict[str, Any]:
        argv = ["publish", "--source", data["source"], "--packs", str(packs)]
        argv += ["--path", data["path"]] if data["path"] else []
        argv += ["--allow-bad-images"] if data["allow_bad_images"] else []
        return trainer_process.run(argv, "publishing the dataset")


def without(plan: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The plan, adjusted to the readable images if some were found unreadable later.

    Raises:
        LockstepError: too few are left.
    """
    sizes = schedule.counts(configs.build(plan["config"]), len(plan["hosts"]), found["train"], found["held_out"])
    schedule.check_sizes(sizes, len(plan["hosts"]))
    kept = {"train": found["train"], "test": found["test"], "left_out": len(found["excluded"])}
    return {**plan, "counts": vars(sizes), "dataset": {**plan["dataset"], **kept}}
