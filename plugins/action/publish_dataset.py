"""Publish the plan's dataset and trainer package on the control node, with progress."""

import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from plugins.shared import control
from trainer import package
from trainer.analysis.progress import Line
from trainer.errors import LockstepError


class ActionModule(control.ControlAction):
    """Returns the fact `published`: digest and folder of the dataset, file of the package."""

    def act(self) -> dict[str, Any]:
        """Publish what is not published yet."""
        plan, packs = self.arguments["plan"], Path(self.arguments["packs"])
        known = plan["dataset"]["digest"]
        found: dict[str, Any] = {"digest": known, "excluded": []} if known else self._publish(plan["config"]["data"], packs)
        if plan["expected_digest"] not in (None, found["digest"]):
            raise LockstepError(
                f"run={plan['run']}: its dataset was {plan['expected_digest'][:16]}, the one given now is {found['digest'][:16]}: "
                "images were added, removed or changed. Restore them, or give a new run name."
            )
        archive = package.build(packs.parent / "code")
        left_out = [name for name, _ in found["excluded"]]
        shown = {"show": f"left out {len(left_out)} images that can't be read: {', '.join(left_out[:5])}"} if left_out else {}
        short = found["digest"][:16]
        published = {
            "digest": found["digest"],
            "folder": str(packs / short),
            "name": short,
            "code": str(archive),
            "code_name": archive.name,
        }
        return {"changed": not known, "ansible_facts": {"published": published}, **shown}

    def _publish(self, data: dict[str, Any], packs: Path) -> dict[str, Any]:
        argv = [sys.executable, "-m", "trainer", "publish", "--source", data["source"], "--packs", str(packs)]
        argv += ["--path", data["path"]] if data["path"] else []
        argv += ["--allow-bad-images"] if data["allow_bad_images"] else []
        line, output = Line(Display(), control.terminal()), collections.deque[str](maxlen=1)
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=control.ROOT) as process,
        ):
            assert process.stdout is not None
            for row in process.stdout:
                output.append(row)
                if not row.startswith("{"):
                    line.update(f"publishing the dataset: {row.strip()}")
            process.wait()
            errors.seek(0)
            error = errors.read()
        line.end()
        if process.returncode != 0:
            raise LockstepError(error.strip().rpartition("error: ")[2])
        found: dict[str, Any] = json.loads(output[-1])
        return found
