"""A language model for llm-reasoners.

    pip install ".[reasoners]"  # in a clone of Dendrite

    from reasoners.algorithm import MCTS
    from dendrite.adapters.reasoners import DendriteModel

    model = DendriteModel(engine.session(seed=7))
    reasoner = Reasoner(world_model, search_config, MCTS())  # whose states hold model.node(...)
    result = reasoner(example)

Where llm-reasoners takes a prompt, this takes a `dendrite.Node` as well: a state that holds one
keeps its tokens' K and V, and what continues it computes only what is new. A Node's copies are
itself, so MCTS may deep-copy its states.

llm-reasoners imports torch and transformers when it is imported. Its searches need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reasoners import GenerateOutput, LanguageModel  # type: ignore[import-untyped]

from dendrite import Branch, Node, Session

__all__ = ["DendriteModel"]

Prompt = str | Node


class DendriteModel(LanguageModel):  # type: ignore[misc]
    """The three questions of llm-reasoners, each asked of all its prompts in one batch.

    `session` computes. Texts are encoded with the tokenizer's special tokens in front
    (`add_special`; None: but for what render_chat gave); what follows a Node is encoded without.
    `max_new_tokens` holds where a call names neither it nor max_length.
    """

    def __init__(
        self, session: Session, *, max_new_tokens: int = 256, add_special: bool | None = None
    ) -> None:
        self.session = session
        self.max_new_tokens = max_new_tokens
        self.add_special = add_special

    def node(self, prompt: Prompt, text: str = "") -> Node:
        """The point of the tree after a prompt, or after a node and a further text."""
        with self._branch(prompt) as branch:
            return Node(branch.append(text) if text else branch)

    def generate(
        self,
        inputs: Prompt | Sequence[Prompt],
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        num_return_sequences: int = 1,
        eos_token_id: str | int | Sequence[str | int] | None = None,
        hide_input: bool = True,
        output_log_probs: bool = False,
        stopping_criteria: None = None,
        **kwargs: Any,
    ) -> GenerateOutput:
        """Continues each input `num_return_sequences` times; those of one input stand together.

        max_length: of the longest input with what it generates, in tokens; max_new_tokens overrides
        it, as temperature, top_k and top_p hold with do_sample alone.

        inputs: texts or nodes, one or several.
        hide_input: False: texts begin with their input.
        eos_token_id: also texts; generation ends before one of these, and at one of the ids.
        output_log_probs: of each generated token, as the raw distributions have them. Other
        keywords are fields of dendrite.DecodeParams. Raises ValueError for stopping_criteria, which
        are transformers'.
        """
        if stopping_criteria is not None:
            raise ValueError("stopping_criteria: got some; expected None, and eos_token_id instead")
        prompts = _listed(inputs)
        ends = [] if eos_token_id is None else _listed(eos_token_id)
        params = {
            "stop": [end for end in ends if isinstance(end, str)],
            "stop_tokens": [end for end in ends if not isinstance(end, str)],
            "temperature": temperature if do_sample else 0.0,
            "top_logprobs": 0 if output_log_probs else -1,
            **({"top_k": top_k, "top_p": top_p} if do_sample else {}),
            **kwargs,
        }
        roots = [self._branch(prompt) for prompt in prompts]
        branches = [branch for root in roots for branch in root.fork(num_return_sequences)]
        limit = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        if max_new_tokens is None and max_length is not None:
            limit = max(0, max_length - max(len(root) for root in roots))
        try:
            generated = self.session.decode(branches, max_tokens=limit, **params)
        finally:
            self.session.prune([*roots, *branches])
        texts = [generation.text for generation in generated]
        if not hide_input:
            before = [self._text(prompt) for prompt in prompts for _ in range(num_return_sequences)]
            texts = [first + text for first, text in zip(before, texts, strict=True)]
        if not output_log_probs:
            return GenerateOutput(texts)
        return GenerateOutput(
            texts, [np.array([token.logprob for token in g.logprobs]) for g in generated]
        )

    def get_next_token_logits(
        self,
        prompt: Prompt | Sequence[Prompt],
        candidates: Sequence[str] | Sequence[Sequence[str]],
        postprocess: str | None = None,
        **kwargs: Any,
    ) -> list[NDArray[np.float32]]:
        """The logits of candidates (each one token) to follow each prompt: [prompts][candidates].

        candidates: the same for all prompts, or a list for each. postprocess: "log_softmax" or
        "softmax", over the whole vocabulary. Raises ValueError for a candidate of several tokens.
        """
        _refuse(kwargs)
        prompts = _listed(prompt)
        each = [candidates] * len(prompts) if isinstance(candidates[0], str) else candidates
        ids = [[self._one_token(str(candidate)) for candidate in of_one] for of_one in each]
        branches = [self._branch(one) for one in prompts]
        try:
            logits = self.session.distributions(branches)
        finally:
            self.session.prune(branches)
        rows = [_processed(row, postprocess) for row in logits]
        return [row[chosen] for row, chosen in zip(rows, ids, strict=True)]

    def get_loglikelihood(
        self, prefix: Prompt, contents: Sequence[str], **kwargs: Any
    ) -> NDArray[np.float64]:
        """The log-likelihood of each content after a prefix: float64 [contents].

        After a text, contents begin with it, as llm-reasoners has it; after a Node they are what
        follows. All are scored in one pass over what they have in common. Where a content's tokens
        part from the prefix's before its end, scoring begins there. Raises ValueError for one that
        does not begin with the prefix.
        """
        _refuse(kwargs)
        if isinstance(prefix, Node):
            with prefix.fork() as branch:
                return np.array([score.logprob for score in branch.score(contents)])
        for content in contents:
            if not content.startswith(prefix):
                raise ValueError(
                    f"got the content {content!r}; expected it to begin with {prefix!r}"
                )
        encoded = [self._encode(text).tolist() for text in (prefix, *contents)]
        common = _common_prefix(encoded)
        with self.session.prefill(encoded[0][:common]) as branch:
            scores = branch.score([tokens[common:] for tokens in encoded[1:]])
        return np.array([score.logprob for score in scores])

    def _encode(self, text: str) -> NDArray[np.int32]:
        return self.session.engine.encode(text, add_special=self.add_special)

    def _branch(self, prompt: Prompt) -> Branch:
        if isinstance(prompt, Node):
            return prompt.fork()
        return self.session.prefill(prompt, add_special=self.add_special)

    def _text(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        return self.session.engine.decode(prompt.tokens, skip_special=True)

    def _one_token(self, text: str) -> int:
        tokens = self.session.engine.encode(text, add_special=False)
        if len(tokens) != 1:
            raise ValueError(f"candidate {text!r}: got {len(tokens)} tokens; expected one")
        return int(tokens[0])


def _refuse(kwargs: dict[str, Any]) -> None:
    """What llm-reasoners' other models take, and would change nothing here."""
    if kwargs:
        raise TypeError(f"unexpected keyword arguments {sorted(kwargs)}; expected none")


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int, Node)) else list(value)


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many elements all of them begin with."""
    columns = enumerate(zip(*sequences, strict=False))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, sequences)))


def _processed(logits: NDArray[np.float32], how: str | None) -> NDArray[np.float32]:
    if how is None:
        return logits
    if how not in ("softmax", "log_softmax"):
        raise ValueError(f"postprocess: got {how!r}; expected 'softmax', 'log_softmax' or None")
    shifted = logits - logits.max()
    logs: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum())
    return np.exp(logs) if how == "softmax" else logs
