"""What a strategy of one's own does becomes the tree of its result."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

from dendrite._core import Branch, Generation, TokenEvent
from dendrite._params import DecodeParams
from dendrite._records import SearchResult, ThoughtRecord
from dendrite._session import Session


class RecordedSession(Session):
    """The session that such a strategy is given: it keeps what each call generates as a thought.

    A thought is what one branch got in one call of decode, decode_step, stream or expand, with all
    that was appended before it. Its parent is the thought whose tokens the branch had, or went on
    from, and its value the mean log-prob of its tokens.
    """

    def __init__(self, session: Session, root: Branch) -> None:
        super().__init__(session.engine, session._handle, session.seed)
        self._thoughts: list[ThoughtRecord] = []
        self._ids: list[list[int]] = []  # of each thought
        self._nodes = {_key(root.tokens.tolist()): 0}  # by all tokens up to its end
        self._branches: dict[int, int] = {}  # the last node of each branch, of equal ones

    def decode(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        **fields: Any,
    ) -> Any:
        """See Session.decode."""
        one = isinstance(branches, Branch)
        many = [branches] if isinstance(branches, Branch) else list(branches)
        begun = [_Begun(branch) for branch in many if isinstance(branch, Branch) and branch]
        out: list[Generation] = super().decode(many, params, **fields)
        for begin, generation in zip(begun, out, strict=True):
            self._note(begin, generation.ids)
        return out[0] if one else out

    def decode_step(
        self, branch: Branch, params: DecodeParams | None = None, **fields: Any
    ) -> int | None:
        """See Session.decode_step."""
        begin = _Begun(branch)
        token = super().decode_step(branch, params, **fields)
        self._note(begin, [] if token is None else [token])
        return token

    def stream(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        **fields: Any,
    ) -> Generator[list[TokenEvent], None, list[Generation]]:
        """See Session.stream."""
        many = [branches] if isinstance(branches, Branch) else list(branches)
        begun = [_Begun(branch) for branch in many]
        ids: list[list[int]] = [[] for _ in many]
        out: list[Generation] = []

        def steps() -> Generator[list[TokenEvent], None, None]:
            out.extend((yield from Session.stream(self, many, params, **fields)))

        try:
            for events in steps():
                for event in events:
                    ids[event.index].append(event.token)
                yield events
            return out
        finally:
            for begin, generated in zip(begun, ids, strict=True):
                self._note(begin, generated)

    def expand(
        self, branches: Sequence[Branch], *, top: int = 0, min_prob: float = 0.0
    ) -> list[list[Branch]]:
        """See Session.expand."""
        begun = [_Begun(branch) for branch in branches]
        children = super().expand(branches, top=top, min_prob=min_prob)
        for begin, of_one in zip(begun, children, strict=True):
            for child in of_one:
                self._note(begin, [child.last_token], child)
        return children

    def complete(self, result: SearchResult) -> bool:
        """Fills in tree and path where the strategy made none. False: it made its own."""
        if result.tree:
            return False
        result.tree = self._thoughts
        if not result.path and result.branch:
            branch = result.branch
            node = self._place(branch.tokens.tolist(), branch)[0]
            while node != 0:
                thought = self._thoughts[node - 1]
                result.path.insert(0, thought)
                node = thought.parent
        for thought in result.path:
            thought.kept = True
        return True

    def lines(self) -> list[dict[str, Any]]:
        """The thoughts as a trace has them."""
        out: list[dict[str, Any]] = []
        for thought, ids in zip(self._thoughts, self._ids, strict=True):
            node = {"event": "proposed", "node": thought.node, "parent": thought.parent}
            what = {"depth": thought.depth, "text": thought.text, "tokens": ids}
            out.append(node | what | {"logprob": thought.logprob})
            out.append({"event": "judged", "node": thought.node, "value": thought.value})
            if thought.kept:
                out.append({"event": "kept", "node": thought.node})
        return out

    def _place(self, tokens: list[int], branch: Branch) -> tuple[int, int]:
        """The node of the longest known beginning of these tokens, and its length."""
        for length in range(len(tokens), 0, -1):
            node = self._nodes.get(_key(tokens[:length]))
            if node is not None:
                return self._own(node, tokens[:length], branch), length
        return 0, 0

    def _own(self, node: int, tokens: list[int], branch: Branch) -> int:
        """Of thoughts of the same text that of the branch, or of the one it was forked from."""
        for name in (branch.id, branch.parent):
            mine = self._branches.get(-1 if name is None else name)
            if mine is not None and self._all_ids(mine) == self._all_ids(node):
                return mine
        return node

    def _all_ids(self, node: int) -> list[list[int]]:
        ids = []
        while node != 0:
            ids.append(self._ids[node - 1])
            node = self._thoughts[node - 1].parent
        return ids

    def _note(self, begin: _Begun, ids: Sequence[int], child: Branch | None = None) -> None:
        if not ids:
            return
        branch = begin.branch if child is None else child
        parent, length = self._place(begin.tokens, begin.branch)
        tokens = begin.tokens + list(ids)
        new = tokens[length:]
        has_text = self.engine.info.has_tokenizer
        text = self.engine.decode(new, skip_special=True) if has_text else " ".join(map(str, new))
        logprob = branch.logprob - begin.logprob if branch else math.nan
        node = len(self._thoughts) + 1
        depth = self._thoughts[parent - 1].depth + 1 if parent else 1
        self._thoughts.append(
            ThoughtRecord(
                node=node,
                parent=parent,
                branch_id=branch.id if branch else begin.id,
                depth=depth,
                text=text,
                tokens=len(new),
                logprob=logprob,
                value=logprob / len(ids),
            )
        )
        self._ids.append(new)
        self._nodes.setdefault(_key(tokens), node)
        self._branches[branch.id if branch else begin.id] = node


class _Begun:
    """Where a branch was before a call."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.id = branch.id
        self.tokens: list[int] = branch.tokens.tolist()
        self.logprob = branch.logprob


def _key(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens)
