"""`python -m trainer.supervision ARGUMENTS`: supervise a worker, `python -m trainer ARGUMENTS`.

The worker's arguments `--run` and `--host` also identify the launch's record, from which all other settings follow.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import FAILED, LockstepError
from trainer.common.files import keep_others_out
from trainer.supervision import parameter_server
from trainer.supervision.child import Start
from trainer.supervision.post import Post
from trainer.supervision.supervisor import Supervisor, say


def main(popen: Start = subprocess.Popen) -> int:
    """Read the command line, and supervise to the end of the run; `popen` starts the workers."""
    line = argparse.ArgumentParser(prog="python -m trainer.supervision", allow_abbrev=False, add_help=False)
    line.add_argument("--run", type=Path, required=True)
    line.add_argument("--host", required=True)
    given, _ = line.parse_known_args()
    keep_others_out()
    return supervise(Post.read(given.run, given.host, sys.argv[1:]), popen=popen)


def supervise(post: Post, clock: Clock = CLOCK, popen: Start = subprocess.Popen) -> int:
    """Supervise a worker to the end of the run."""
    try:
        return (Supervisor if post.servers is None else parameter_server.of)(post, clock, popen).run()
    except LockstepError as error:
        say(f"error: {error}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
