"""Several workers, each a process with an engine of its own, as one: a pool on Ray.

Code goes to where the tokens are: whole searches (`Pool.run`) or single calls of a session
(`Pool.session`), never tokens one by one. A session lives in one worker and stays there; it goes to
the worker that has computed most of its prompt. Branches travel as snapshots. What a worker loses
when it dies is made again from the last snapshot and the calls since, with the same tokens, since
draws depend on counters alone.

    from dendrite.ray import Pool

    with Pool("path/to/model", workers=2) as pool:
        answers = pool.run(search, puzzles)  # search(session, puzzle) -> any plain value
        with pool.session(seed=7, prompt=prompt) as session:
            kids = session.prefill(prompt).fork(8)
            session.decode(kids, max_tokens=64)

Limits: each worker holds the whole model. A session, or a part of one after `scatter`, lives in one
worker. Equal bits need workers with equal numerics keys, which the pool checks. The number of
workers does not change. The pool ends with its process.
"""

from dendrite.ray.place import WorkerLost
from dendrite.ray.pool import Pool
from dendrite.ray.session import PoolBranch, PoolSession
from dendrite.ray.wire import ChosenToken, Generation, Score, TokenLogprob

__all__ = [
    "ChosenToken",
    "Generation",
    "Pool",
    "PoolBranch",
    "PoolSession",
    "Score",
    "TokenLogprob",
    "WorkerLost",
]
