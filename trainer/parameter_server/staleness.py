"""How far steps may run ahead of the oldest one that has not ended: stale synchronous parallel, with calls as its clock.

Ho et al. 2013 (NIPS, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"): with the bound 0, all workers
finish a round before any begins the next; with the bound s, the fastest is at most s rounds ahead of the slowest.
"""

QUEUED = 2
"""Calls in progress or waiting per worker where nothing bounds them: a worker never waits for its next one."""


def may_begin(number: int, oldest: int, under_way: int, workers: int, staleness: int | None) -> bool:
    """Return whether the call `number` may be handed to a worker.

    Args:
        number: of the call, from 0, counted since all workers last waited for each other.
        oldest: number of the oldest call that has not ended; `number` if all have.
        under_way: calls that have been handed out and have not ended.
        workers: how many compute.
        staleness: rounds of one call per worker that a call may be ahead; None: any.
    """
    bound = under_way < QUEUED * workers
    return bound if staleness is None else bound and number // workers - oldest // workers <= staleness
