"""TRL: rollouts for GRPOTrainer, drawn by this engine and by searches over it.

    pip install ".[trl]"  # in a clone of Dendrite

    from dendrite.adapters.trl import Rollout

    trainer = GRPOTrainer(model, reward_funcs=..., args=..., rollout_func=Rollout(engine))

TRL's `rollout_func(prompts, trainer)` is experimental; this is for TRL 1.16. TRL names each prompt
as often as it wants completions of it. Here it is computed once and forked, all prompts' branches
are decoded in one batch, and log-probs come of one pass over the tree (dendrite.export).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dendrite import Branch, DecodeParams, Engine, Error, Session, export

TrlPrompt: TypeAlias = str | list[dict[str, Any]]
"""A text, or a chat's messages."""

Search: TypeAlias = Callable[[Session, Branch, int], Sequence[Branch]]
"""search(session, root, count): so many branches that go on from the prompt."""


class Rollout:
    """A `rollout_func` of GRPOTrainer.

    engine: one engine, or a function of the trainer that gives the one to draw from, asked before
        each rollout. An engine's weights do not change. For rollouts of the policy that is being
        trained, save the trainer's model every few steps, and return an engine that loaded it.
    search: makes the branches of one prompt; they may share as much as they like, and their
        tokens after the prompt are the completions. Default: as many forks as TRL wants,
        decoded with all other prompts' in one batch.
    fields: of DecodeParams, in place of what the trainer says (its temperature, top_p, top_k,
        min_p, repetition_penalty, and max_completion_length as max_tokens).

    Returns `prompt_ids`, `completion_ids` and `logprobs`, one list a prompt, in their order.
    Log-probs are what TRL compares with its own: of the logits divided by the temperature, before
    filters and penalties. The trainer's tokenizer must be that of the engine's model. TRL trains on
    all tokens after the prompt, those that a search appended too.

    Raises Error for a trainer with tools (a search can call them), and where a search returned
    another number of branches, or one without a token after its prompt.
    """

    def __init__(
        self,
        engine: Engine | Callable[[Any], Engine],
        *,
        search: Search | None = None,
        **fields: Any,
    ) -> None:
        self._engine = engine
        self._search = search
        self._fields = fields
        self._session: Session | None = None

    def __call__(self, prompts: Sequence[TrlPrompt], trainer: Any) -> dict[str, Any]:
        """What TRL calls."""
        session = self._session_of(trainer)
        params = _params_of(trainer).replace(**self._fields)
        groups = _groups(prompts)
        roots = [_prefill(session, prompts[places[0]], trainer) for places in groups]
        try:
            if self._search is None:
                found = [root.fork(len(places)) for root, places in zip(roots, groups, strict=True)]
                session.decode([branch for several in found for branch in several], params)
            else:
                found = [
                    list(self._search(session, root, len(places)))
                    for root, places in zip(roots, groups, strict=True)
                ]
            return _output(session, found, groups, params.temperature or 0.0)
        finally:
            session.prune(roots)

    def _session_of(self, trainer: Any) -> Session:
        """One session an engine: prompts that are asked for again draw afresh in it."""
        engine = self._engine if isinstance(self._engine, Engine) else self._engine(trainer)
        if self._session is None or self._session.engine is not engine:
            # Processes of one training, and engines of its later steps, draw differently.
            where = trainer.accelerator.process_index + (trainer.state.global_step << 20)
            self._session = engine.session(seed=trainer.args.seed, stream=where)
        return self._session


def _params_of(trainer: Any) -> DecodeParams:
    return DecodeParams(
        max_tokens=trainer.max_completion_length or 256,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        min_p=trainer.min_p,
        repetition_penalty=trainer.repetition_penalty,
    )


def _groups(prompts: Sequence[TrlPrompt]) -> list[list[int]]:
    """The places of each prompt, of which there are several."""
    groups: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(prompt if isinstance(prompt, str) else repr(prompt), []).append(place)
    return list(groups.values())


def _prefill(session: Session, prompt: TrlPrompt, trainer: Any) -> Branch:
    if isinstance(prompt, str):
        return session.prefill(prompt)
    if trainer.tools:
        raise Error("the trainer has tools; expected none: let a search call them")
    text = session.engine.render_chat(prompt, **trainer.chat_template_kwargs)
    return session.prefill(text, add_special=False)


def _output(
    session: Session,
    found: Sequence[Sequence[Branch]],
    groups: Sequence[Sequence[int]],
    temperature: float,
) -> dict[str, Any]:
    rows: dict[int, tuple[list[int], list[int], list[float]]] = {}
    for branches, places in zip(found, groups, strict=True):
        if len(branches) != len(places):
            raise Error(f"the search returned {len(branches)} branches; expected {len(places)}")
        tree = export.tree(branches, temperature=temperature, session=session)
        for place, branch, row in zip(places, branches, tree.rows(), strict=True):
            begin = branch.prompt_length
            if len(branch) == begin:
                raise Error("a branch has no token after its prompt; expected a completion")
            rows[place] = (
                row.ids[:begin].tolist(),
                row.ids[begin:].tolist(),
                row.logprob[begin:].tolist(),
            )
    several = [rows[place] for place in range(len(rows))]
    names = ("prompt_ids", "completion_ids", "logprobs")
    return {name: [row[i] for row in several] for i, name in enumerate(names)}
