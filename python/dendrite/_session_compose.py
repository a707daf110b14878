"""A session's calls for context that is composed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from dendrite import _core
from dendrite._compose import AnyEdit, Composed, Mode, Piece, Repair, native_edits, native_spans
from dendrite._compose import native as native_compose
from dendrite._core import Branch, Cancel, Chunk, Estimate, Generation, TokenEvent
from dendrite._params import DecodeFields, DecodeParams, native
from dendrite._types import Prompt


class ComposeCalls:
    """Session's part for context that is composed of pieces; see dendrite.Session."""

    _handle: _core.SessionHandle

    # Context that is composed. None of these changes a branch that it is given: each makes a new
    # one, with a random stream of its own and without text or constraint, whose prompt_length is
    # its length.

    def register_chunk(
        self,
        content: Prompt,
        *,
        prefix: Prompt | None = None,
        stub: bool = True,
        name: str = "",
        cancel: Cancel | None = None,
    ) -> Chunk:
        """Computes a text, or tokens as they are, for compositions to take.

        A text is stripped of white space at both ends and has LF for CR LF. The same content behind
        the same context is one chunk, whoever registers it.

        prefix: what it is computed behind, the system prompt, say: the first chunk behind the same
            tokens is an exact fork of it, and no chunk is the beginning of a text. A text is
            encoded without special tokens, as the beginning of a text.
        stub: without a prefix: behind 4 BOS tokens (newlines, where there is no BOS) rather than
            nothing.
        name: for people.

        Raises Error for content that is empty.
        """
        return self._handle.register_chunk(content, prefix, stub, name, cancel)

    def compose(
        self,
        pieces: Sequence[Piece],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """A branch of the pieces one after the other.

        Those that have K and V elsewhere are moved: V is copied and K rotated to its new position.
        What was moved knows nothing of the text before it here, so this is not what computing the
        whole text would give; the report says how much was moved. Rows are computed for text,
        repairs and the last token alone; of what was composed before, and is still there, none.
        Composing the same again gives the same bits.

        repair: which tokens of pieces that are moved are computed here; None: Repair().
        mode: "exact": nothing is moved; bit for bit what prefill of the same tokens gives.
        target_kl: > 0: the error is estimated, and while it is above this, the repair's `first` is
            doubled; beyond 64 the branch is computed exactly, and the report says so. 0: no
            estimate.
        exact_behind: the exact branch of the same tokens is computed as well, by and by, while the
            branch lives: in rows that the steps of other calls have to spare, or alone once aio
            has started the engine's thread, and in pages that nobody wants. Then settle computes
            nothing.

        Raises Error for an empty composition, a span outside of its branch, and a model whose K
        cannot be moved, or is not what it should be where it was.
        """
        params = native_compose(repair, mode, target_kl, cancel, exact_behind)
        return Composed(*self._handle.compose(pieces, params))

    def generate_from_chunks(
        self,
        pieces: Sequence[Piece],
        params: DecodeParams | None = None,
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generation:
        """compose of the `pieces` and decode, whose arguments it takes."""
        return self._handle.generate_from_chunks(
            pieces,
            native(params, fields),
            native_compose(repair, mode, target_kl, cancel),
            on_token,
            on_step,
        )

    def edit(
        self,
        branch: Branch,
        edits: Sequence[AnyEdit],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """The branch with spans dropped or replaced, in ascending order and apart from each other.

        What is before the first is shared; behind it nothing is exact, in no mode but "exact": what
        is kept remembers what was dropped. Where a fact was corrected, or a secret removed, use
        "exact". `edits`: see Edit. Other arguments are those of compose.
        """
        params = native_compose(repair, mode, target_kl, cancel, exact_behind)
        return Composed(*self._handle.edit(branch, native_edits(edits), params))

    def compact(
        self,
        branch: Branch,
        keep: Sequence[tuple[int, int]],
        summary: str = "",
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """The branch with the spans to `keep` (begin, end) alone; `summary` goes in the first gap.

        See edit.
        """
        params = native_compose(repair, mode, target_kl, cancel, exact_behind)
        return Composed(*self._handle.compact(branch, native_spans(keep), summary, params))

    def join(
        self,
        siblings: Sequence[Branch],
        *,
        before_each: str = "",
        after_all: str = "",
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """What the siblings have in common, then each one's own tokens in this order.

        The first one's are shared, the others' moved, or computed in one batch ("exact").
        `before_each`: text between the siblings' own; `after_all`: and after them. Other arguments
        are those of compose.
        """
        params = native_compose(repair, mode, target_kl, cancel, exact_behind)
        return Composed(*self._handle.join(siblings, before_each, after_all, params))

    def join_many(
        self,
        groups: Sequence[Sequence[Branch]],
        *,
        before_each: str = "",
        after_all: str = "",
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> list[Composed]:
        """Several joins, one of each of the `groups`, whose rows share their steps.

        `before_each`, `after_all`: see join.
        """
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        joined = self._handle.join_many(groups, before_each, after_all, params)
        return [Composed(*one) for one in joined]

    def settle(self, branch: Branch, *, cancel: Cancel | None = None) -> Branch:
        """The branch of the same tokens that nothing was moved to."""
        return self._handle.settle(branch, cancel)

    def audit(self, branch: Branch, *, cancel: Cancel | None = None) -> Estimate:
        """How far the branch is from that one, after its last 32 tokens.

        Nothing changes but that branch.composition has the estimate; where the exact one's K and V
        are held they are not computed.
        """
        return self._handle.audit(branch, cancel)
