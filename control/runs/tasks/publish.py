"""Publish the plan's dataset and trainer package on the control node, with progress."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from control.common import configurations, text
from control.common.plan import Plan
from control.common.task import Task
from control.datasets.publishing import class_counts
from control.datasets.publishing.publish import PublishedData
from control.remote import trainer_process
from control.remote.published import Published, PublishedFile
from trainer.common.errors import LockstepError
from trainer.common.files import replacing, sha256_file
from trainer.common.safe_text import printable
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.data import manifest
from trainer.rundir.launch_record import training


def publish(task: Task) -> dict[str, Any]:
    """Publish the missing parts. Returns the fact `published`: digest and folder of the dataset, file of the package."""
    plan, packs = task.plan, Path(task.arguments["packs"])
    code = Published.trainer(packs)
    beside = Path(code.code).parent
    if plan.script:
        name, sha256 = plan.script["archive"], plan.script["sha256"]
        others = {"script": PublishedFile(str(beside / name), name, sha256)}
        return {"ansible_facts": {"published": dataclasses.replace(code, others=others)}}
    already_published = bool(plan.dataset["digest"])
    record = PublishedData.parsed(plan.dataset) if already_published else _publish(plan.config["data"], packs)
    assert record.digest is not None
    dataset = record.place(packs)
    replanned = {"plan": _recounted(without(plan, record), dataset)} if record.excluded else {}
    if plan.expected_digest not in (None, record.digest):
        raise LockstepError(
            f"run={plan.run}: its dataset was {plan.expected_digest[:16]}, the one given now is {record.digest[:16]}: "
            "its examples have changed since. Fix: restore them, or give a new run name."
        )
    left_out = [printable(name) for name, _ in record.excluded]
    shown = {"show": f"left out {text.count(len(left_out), 'image')} that can't be read: {', '.join(left_out[:5])}"} if left_out else {}
    others = {"weights": _copied_weights(plan.weights, beside)} if plan.weights else {}
    published = dataclasses.replace(code, digest=record.digest, folder=str(dataset.folder), manifest=dataset.sha256, others=others)
    return {"changed": not already_published, "ansible_facts": {"published": published, **replanned}, **shown}


def _publish(data: dict[str, Any], packs: Path) -> PublishedData:
    argv = ["publish", "--source", data["source"], "--packs", str(packs)]
    argv += [f"--test-split={data['test_split']}"]
    argv += ["--path", data["path"]] if data["path"] else []
    argv += ["--allow-bad-images"] if data["allow_bad_images"] else []
    argv += [f"--target={data['target']}"] if data.get("target") is not None else []
    argv += [f"--feature={feature}" for feature in data.get("features") or ()]
    return PublishedData.parsed(trainer_process.run_trainer(argv, "publishing the dataset"))


def _copied_weights(weights: dict[str, Any], folder: Path) -> PublishedFile:
    """Copy a file of weights to the folder in which later launches of the run find it; return the copy."""
    copy = folder / weights["name"]
    if not copy.is_file() or sha256_file(copy) != weights["sha256"]:
        with replacing(copy) as part:
            shutil.copyfile(weights["local"], part)
    return PublishedFile(str(copy), copy.name, weights["sha256"])


def _recounted(plan: Plan, dataset: manifest.Published) -> Plan:
    """The plan, with class weights recomputed from the remaining images."""
    config = configurations.build(plan.config)
    if config.train.class_weight != configs.BALANCED:
        return plan
    counts = class_counts.of_images(manifest.load(dataset), schedule.Counts(**plan.counts))
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, class_counts=tuple(counts)))
    return dataclasses.replace(plan, config=configurations.to_dict(config), config_yaml=configurations.dump(config))


def without(plan: Plan, record: PublishedData) -> Plan:
    """The plan, adjusted to the readable images if some turned out to be unreadable; LockstepError if too few are left."""
    config, workers = configurations.build(plan.config), len(training(plan.hosts))
    sizes = schedule.counts(config, workers, record.train, record.held_out)
    configurations.check_sizes(sizes, schedule.sharing(config, workers))
    kept = {"train": record.train, "test": record.test, "left_out": len(record.excluded)}
    return dataclasses.replace(plan, counts=vars(sizes), dataset={**plan.dataset, **kept})
