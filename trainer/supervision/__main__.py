"""`python -m trainer.supervision POST ARGUMENTS`: supervise a worker, `python -m trainer` with these arguments; the post is JSON."""

import json
import subprocess
import sys

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import FAILED, LockstepError
from trainer.common.files import keep_others_out
from trainer.supervision import parameter_server
from trainer.supervision.child import Start
from trainer.supervision.supervisor import Post, Supervisor, say


def main(popen: Start = subprocess.Popen) -> int:
    """Read the command line, and supervise to the end of the run; `popen` starts the workers."""
    given, *worker = sys.argv[1:]
    keep_others_out()
    return supervise(Post.read(json.loads(given), worker), popen=popen)


def supervise(post: Post, clock: Clock = CLOCK, popen: Start = subprocess.Popen) -> int:
    """Supervise a worker to the end of the run."""
    try:
        return (Supervisor if post.servers is None else parameter_server.of)(post, clock, popen).run()
    except LockstepError as error:
        say(f"error: {error}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
