"""Game of 24 and Countdown as the shipped model dendrite-24 is taught them.

Every step combines two numbers of the state into one by + - * /, the larger first, division exact,
the result a whole number in 1..999; the state is written sorted: "10-4=6 | 5 6 6".
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dendrite._core import Branch, Error, Finish
from dendrite._params import DecodeParams
from dendrite.search import (
    BeamSearch,
    BestOfN,
    Judgement,
    Mcts,
    Proposals,
    Rule,
    SearchResult,
    Steps,
    TreeOfThoughts,
    expand_until,
)

if TYPE_CHECKING:
    from dendrite._session import Session

_NUMBER = "([1-9][0-9]*)"
_STEP = re.compile(f"{_NUMBER}([-+*/]){_NUMBER}={_NUMBER} \\|((?: {_NUMBER})*)")
_COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_LARGEST = 999
_TOKENS_PER_STEP = 32
_MIN_PROB = 0.003


def check_numbers(numbers: Sequence[int], target: int) -> list[int]:
    """The state that a puzzle begins with. Raises Error for one that the model does not know."""
    if not 2 <= len(numbers) <= 5:
        raise Error(f"solve: got {len(numbers)} numbers; expected 2 to 5")
    for number in numbers:
        if not 1 <= number <= _LARGEST:
            raise Error(f"solve: got the number {number}; expected 1 to {_LARGEST}")
    if not 1 <= target <= _LARGEST:
        raise Error(f"solve: the target is {target}; expected 1 to {_LARGEST}")
    return sorted(numbers)


def next_state(state: Sequence[int], step: str) -> list[int] | None:
    """The numbers after a step; None if it is not legal, or not written as the model is taught."""
    parsed = _STEP.fullmatch(step)
    if parsed is None:
        return None
    left, right, result = int(parsed[1]), int(parsed[3]), int(parsed[4])
    if left < right or _compute(left, parsed[2], right) != result:
        return None
    rest = list(state)
    for used in (left, right):
        if used not in rest:
            return None
        rest.remove(used)
    rest = sorted([*rest, result])
    return rest if rest == [int(number) for number in parsed[5].split()] else None


def _compute(left: int, op: str, right: int) -> int | None:
    if op == "/":
        result = left // right if left % right == 0 else 0
    else:
        result = _COMPUTE[op](left, right)
    return result if 1 <= result <= _LARGEST else None


def state_after(numbers: Sequence[int], text: str) -> list[int] | None:
    """The numbers after all steps of a text; None if one of them is not legal."""
    state: list[int] | None = list(numbers)
    for step in _lines(text):
        state = next_state(state, step) if state is not None else None
    return state


def _without_ok(text: str) -> str:
    """A whole solution without the word that ends it."""
    return text.removesuffix("\n").removesuffix("ok")


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def expression(numbers: Sequence[int], steps: Sequence[str]) -> str:
    """One parenthesised expression of legal steps down to one number: "(10-4)*(13-9)"."""
    terms = [(number, str(number), 2) for number in numbers]  # 2: a number, 1: * /, 0: + -

    def take(value: str) -> tuple[str, int]:
        term = next(term for term in terms if term[0] == int(value))
        terms.remove(term)
        return term[1], term[2]

    def operand(term: tuple[str, int], least: int) -> str:
        return f"({term[0]})" if term[1] < least else term[0]

    for step in steps:
        parsed = _STEP.fullmatch(step)
        assert parsed is not None, step
        left, right = take(parsed[1]), take(parsed[3])
        level = 0 if parsed[2] in "+-" else 1
        regroups = level + (parsed[2] in "-/")
        text = operand(left, level) + parsed[2] + operand(right, regroups)
        terms.append((int(parsed[4]), text, level))
    return terms[-1][1]


def prompt(numbers: Sequence[int], target: int, strategy: str = "tot") -> str:
    """What makes the model propose steps, and judge them; or write a whole solution."""
    kind = "P" if strategy in ("tot", "mcts") else "S"
    return f"{kind} {target}: {' '.join(map(str, numbers))}\n"


def strategy(
    name: str, numbers: Sequence[int], target: int, width: int
) -> TreeOfThoughts | Mcts | BeamSearch | BestOfN:
    """The search that `solve --strategy` names, with its usual numbers."""
    tree = tree_of_thoughts(numbers, target, width)
    if name == "tot":
        return tree
    if name == "mcts":
        depth = len(numbers) - 1
        return Mcts(
            rule=Rule.PUCT, batch=width, depth=depth, steps=tree.steps, solved=tree.solved
        )

    def is_solution(branch: Branch, text: str) -> bool:
        return state_after(numbers, _without_ok(branch.text)) == [target]

    longest = _TOKENS_PER_STEP * (len(numbers) - 1)
    if name == "beam":
        return BeamSearch(width=width, max_tokens=longest, solved=is_solution)
    greedy = name == "greedy"
    sampling = DecodeParams(max_tokens=longest, temperature=0.0 if greedy else 1.0)
    return BestOfN(n=1 if greedy else width, sampling=sampling, solved=is_solution)


def steps_of(result: SearchResult) -> list[dict[str, Any]]:
    """The steps of a solution, whatever a thought of its search was."""
    assert result.branch is not None
    lines = _lines(_without_ok(result.branch.text))
    if [step.text for step in result.path] == lines:  # a thought was a step
        return [{"text": s.text, "branch": s.branch_id, "value": s.value} for s in result.path]
    return [{"text": line, "branch": result.branch.id, "value": 1.0} for line in lines]


def greedy(session: Session, numbers: Sequence[int], target: int) -> tuple[str, bool]:
    """What greedy decoding alone writes, as an expression where it is right."""
    with session.prefill(prompt(numbers, target, "greedy")) as branch:
        longest = _TOKENS_PER_STEP * (len(numbers) - 1)
        text = _without_ok(session.decode(branch, max_tokens=longest, temperature=0.0).text)
    steps = _lines(text)
    if state_after(numbers, text) == [target]:
        return expression(numbers, steps), True
    return "; ".join(steps), False


def tree_of_thoughts(numbers: Sequence[int], target: int, width: int) -> TreeOfThoughts:
    """A search over the model's own proposals and judgements.

    Children of a node are all lines that the model gives at least 0.003; illegal ones are dropped;
    the judge is the model's probability of "sure" against "impossible" after "?", at the last depth
    the target itself.
    """
    depth = len(numbers) - 1

    def propose(session: Session, nodes: list[Branch]) -> Proposals:
        newline = int(session.engine.encode("\n", add_special=False)[-1])
        return expand_until(session, nodes, newline, _MIN_PROB, _TOKENS_PER_STEP)

    def is_solution(branch: Branch, step: str = "") -> bool:
        return state_after(numbers, branch.text) == [target]

    def judge(session: Session, candidates: list[Branch]) -> list[float]:
        # One token of each label tells them apart; "?" is shared.
        values = [1.0 if is_solution(branch) else 0.0 for branch in candidates]
        is_open = [i for i, b in enumerate(candidates) if len(_lines(b.text)) < depth]
        scores = session.score([candidates[i] for i in is_open], ["?s", "?i"]) if is_open else []
        for i, (sure, impossible) in zip(is_open, scores, strict=True):
            margin = sure.logprob - impossible.logprob  # NaN: not computed
            values[i] = 0.0 if math.isnan(margin) else 1 / (1 + math.exp(-margin))
        return values

    return TreeOfThoughts(
        depth=depth,
        width=width,
        steps=Steps(
            propose=propose,
            accept=lambda branch, step: state_after(numbers, branch.text) is not None,
            judgement=Judgement(judge=judge),
        ),
        solved=is_solution,
    )


def reason(solved: bool, finish: Finish) -> str:
    """Why a search ended, in words."""
    if solved:
        return "solved"
    ends = {Finish.BUDGET: "the budget ran out", Finish.CANCELLED: "cancelled"}
    return ends.get(finish, "the search missed it, if there is one")
