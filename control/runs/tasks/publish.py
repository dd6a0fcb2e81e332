"""Publish the plan's dataset and trainer package on the control node, with progress."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from control.common import configurations, text
from control.common.plan import Plan
from control.common.task import Task
from control.datasets.publishing import class_counts
from control.datasets.publishing.publish import place_of
from control.remote import trainer_package, trainer_process
from trainer.common.errors import LockstepError
from trainer.common.files import replacing, sha256_file
from trainer.common.safe_text import printable
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.data import manifest
from trainer.rundir.launch_record import training


def publish(task: Task) -> dict[str, Any]:
    """Publish what is not published yet. Returns the fact `published`: digest and folder of the dataset, file of the package."""
    plan, packs = task.plan, Path(task.arguments["packs"])
    archive = trainer_package.TRAINER.build(packs.parent / "code")
    code = {"code": str(archive), "code_name": archive.name, "code_sha256": sha256_file(archive)}
    if plan.script:
        return {"ansible_facts": {"published": code | _of_script(plan.script, archive.parent)}}
    already_published = plan.dataset["digest"]
    data = plan.config["data"]
    record: dict[str, Any] = plan.dataset | {"excluded": []} if already_published else _publish(data, packs)
    replanned = {"plan": _recounted(without(plan, record), record, packs).fact} if record["excluded"] else {}
    if plan.expected_digest not in (None, record["digest"]):
        raise LockstepError(
            f"run={plan.run}: its dataset was {plan.expected_digest[:16]}, the one given now is {record['digest'][:16]}: "
            "its examples have changed since. Fix: restore them, or give a new run name."
        )
    left_out = [printable(name) for name, _ in record["excluded"]]
    shown = {"show": f"left out {text.count(len(left_out), 'image')} that can't be read: {', '.join(left_out[:5])}"} if left_out else {}
    dataset = place_of(packs, record["manifest"])
    published = {
        "digest": record["digest"],
        "folder": str(dataset.folder),
        "name": dataset.folder.name,
        "manifest": dataset.sha256,
        "weights": _kept(plan.weights, archive.parent),
        **code,
    }
    return {"changed": not already_published, "ansible_facts": {"published": published, **replanned}, **shown}


def _publish(data: dict[str, Any], packs: Path) -> dict[str, Any]:
    argv = ["publish", "--source", data["source"], "--packs", str(packs)]
    argv += [f"--test-split={data['test_split']}"]
    argv += ["--path", data["path"]] if data["path"] else []
    argv += ["--allow-bad-images"] if data["allow_bad_images"] else []
    argv += [f"--target={data['target']}"] if data.get("target") is not None else []
    argv += [f"--feature={feature}" for feature in data.get("features") or ()]
    return trainer_process.run(argv, "publishing the dataset")


def _kept(weights: dict[str, Any] | None, folder: Path) -> dict[str, Any] | None:
    """A file of weights, copied to where later launches of the run find it."""
    if weights is None:
        return None
    own = folder / weights["name"]
    if not own.is_file() or sha256_file(own) != weights["sha256"]:
        with replacing(own) as part:
            shutil.copyfile(weights["local"], part)
    return weights | {"local": str(own)}


def _of_script(script: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The entries of `published` for a script, which has no dataset."""
    return {
        **dict.fromkeys(("folder", "name", "manifest"), ""),
        "digest": None,
        "script": {"local": str(folder / script["archive"]), "name": script["archive"], "sha256": script["sha256"]},
    }


def _recounted(plan: Plan, record: dict[str, Any], packs: Path) -> Plan:
    """The plan, whose class weights follow from the images that are left."""
    config = configurations.build(plan.config)
    if config.train.class_weight != configs.BALANCED:
        return plan
    counts = class_counts.of_images(manifest.load(place_of(packs, record["manifest"])), schedule.Counts(**plan.counts))
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, class_counts=tuple(counts)))
    return dataclasses.replace(plan, config=configurations.to_dict(config), config_yaml=configurations.dump(config))


def without(plan: Plan, record: dict[str, Any]) -> Plan:
    """The plan, adjusted to the readable images if others turned out to be unreadable; LockstepError if too few are left."""
    config, workers = configurations.build(plan.config), len(training(plan.hosts))
    sizes = schedule.counts(config, workers, record["train"], record["held_out"])
    configurations.check_sizes(sizes, schedule.sharing(config, workers))
    kept = {"train": record["train"], "test": record["test"], "left_out": len(record["excluded"])}
    return dataclasses.replace(plan, counts=vars(sizes), dataset={**plan.dataset, **kept})
