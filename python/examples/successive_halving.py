"""A strategy of one's own: successive halving. It needs nothing but a method `run`."""

import dataclasses
import sys

from dendrite import DecodeParams, Engine, Finish, SearchResult


# [strategy]
@dataclasses.dataclass
class SuccessiveHalving:
    """Karnin et al. 2013: `n` continuations race, and after every slice of tokens the half with
    the lower mean log-prob is dropped. The last one goes on to its end."""

    n: int = 16
    slice: DecodeParams = DecodeParams(max_tokens=8, temperature=1.0)

    def run(self, session, root):
        racing, start = root.fork(self.n), len(root)
        while running := [b for b in racing if b.finish in (Finish.RUNNING, Finish.LENGTH)]:
            outs = session.decode(running, self.slice)  # one batch
            cut_short = [o for o in outs if o.finish in (Finish.BUDGET, Finish.CANCELLED)]
            if cut_short:
                return SearchResult(branch=racing[0], finish=cut_short[0].finish)
            ended = [b for b in racing if b not in running]
            racing = sorted(running + ended, key=lambda b: b.logprob / (start - len(b)))
            racing = racing[: (len(racing) + 1) // 2]  # the losers' pages go back to the pool
            del running, ended
        return SearchResult(branch=racing[0])


# [/strategy]


engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session(seed=1) as session:
    result = session.run_tree(SuccessiveHalving(n=32), "S 24: 4 5 6 10\n")
    stats = session.stats()
    print(f"{result.branch.text}{stats.tokens_computed} tokens computed, {stats.steps} steps")
    sys.exit(0 if result.branch.text.endswith("ok\n") else 1)
