"""Publish the plan's dataset and trainer package on the control node, with progress."""

import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from plugins.shared import control
from trainer import package
from trainer.analysis.progress import Line
from trainer.errors import LockstepError


class ActionModule(ActionBase):
    """Returns the fact `published`: digest and folder of the dataset, file of the package."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Publish what is not published yet."""
        result = super().run(tmp, task_vars)
        plan, packs = self._task.args["plan"], Path(self._task.args["packs"])
        known = plan["dataset"]["digest"]
        with control.refusing():
            found = {"digest": known, "excluded": []} if known else self._publish(plan["config"]["data"], packs)
        archive = package.build(packs.parent / "code")
        result["changed"] = not known
        if found["excluded"]:
            result["show"] = (
                f"left out {len(found['excluded'])} images that can't be read: {', '.join(name for name, _ in found['excluded'][:5])}"
            )
        short = found["digest"][:16]
        published = {
            "digest": found["digest"],
            "folder": str(packs / short),
            "name": short,
            "code": str(archive),
            "code_name": archive.name,
        }
        result["ansible_facts"] = {"published": published}
        return result

    def _publish(self, data: dict[str, Any], packs: Path) -> dict[str, Any]:
        argv = [sys.executable, "-m", "trainer", "publish", "--source", data["source"], "--packs", str(packs)]
        argv += ["--path", data["path"]] if data["path"] else []
        argv += ["--allow-bad-images"] if data["allow_bad_images"] else []
        line, output = Line(Display(), control.terminal()), collections.deque[str](maxlen=1)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=control.ROOT) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for row in process.stdout:
                output.append(row)
                if not row.startswith("{"):
                    line.update(f"publishing the dataset: {row.strip()}")
            error = process.stderr.read()
        line.end()
        if process.returncode != 0:
            raise LockstepError(error.strip().removeprefix("error: "))
        found: dict[str, Any] = json.loads(output[-1])
        return found
