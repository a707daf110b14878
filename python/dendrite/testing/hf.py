"""References by Hugging Face transformers, for dendrite.testing.golden --hf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dendrite import Engine, Error
from dendrite.testing.golden import Reference

_PROMPTS, _STEPS = 50, 128
_SEQUENCE = 130
_POSITIONS = (0, 4, 14, 15, 16, 30, 31, 32, 62, 63, 64, 129)
_ENDS = (0, 32, 129)


def run(engine: Engine, prompts: Path | None) -> Reference:
    """Runs the engine's model in transformers: float32, eager attention, on the CPU.

    `prompts`: a file with one a line, of which the first 50 are taken; None: random ids. Raises
    Error where torch or transformers is missing.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        expected = "torch and transformers (pip install torch transformers)"
        raise Error(f"--hf: {error}; expected {expected}") from error
    model = AutoModelForCausalLM.from_pretrained(
        engine.info.model_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rng = np.random.default_rng(24)
    ids = _random_ids(engine, rng, _SEQUENCE)
    starts = _texts(engine, prompts) if prompts is not None else _random_prompts(engine, rng)
    with torch.inference_mode():
        sequence = torch.from_numpy(ids)[None].long()
        logits = model(sequence).logits[0].numpy()
        states = model.base_model(sequence).last_hidden_state[0].numpy()
        chosen, gap, logprob = _greedy(torch, model, starts)
    positions = np.array(_POSITIONS, np.int32)
    return Reference(
        ids,
        positions,
        logits[positions],
        None,
        starts,
        chosen,
        gap,
        logprob,
        np.array(_ENDS, np.int32),
        states[list(_ENDS)],
        np.stack([states[: end + 1].mean(0) for end in _ENDS]),
        None,
    )


def _texts(engine: Engine, path: Path) -> list[NDArray[np.int32]]:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise Error(f"{path} has no prompt; expected one a line")
    return [engine.encode(line) for line in lines[:_PROMPTS]]


def _random_prompts(engine: Engine, rng: np.random.Generator) -> list[NDArray[np.int32]]:
    """Lengths 1 to 96, borders of pages among them."""
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96]
    lengths += rng.integers(1, 97, _PROMPTS - len(lengths)).tolist()
    return [_random_ids(engine, rng, length) for length in lengths]


def _random_ids(engine: Engine, rng: np.random.Generator, length: int) -> NDArray[np.int32]:
    ids = rng.integers(0, engine.info.vocab, length).astype(np.int32)
    if engine.info.bos:
        ids[0] = engine.info.bos[0]
    return ids


def _greedy(
    torch: Any, model: Any, prompts: list[NDArray[np.int32]]
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """(ids, gaps, log-probs), each [prompts, steps], of the tokens after all prompts, which are
    one batch, padded on the left; of equal logits the lowest id's."""
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    steps: list[tuple[Any, Any, Any]] = []
    cache = None
    for _ in range(_STEPS):
        out = model(
            tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        logits = out.logits[:, -1]
        best = torch.topk(logits, 2).values
        chosen = (logits == best[:, :1]).int().argmax(1, keepdim=True)
        logprob = torch.log_softmax(logits, -1).gather(1, chosen)[:, 0]
        steps.append((chosen[:, 0], best[:, 0] - best[:, 1], logprob))
        tokens, positions = chosen, positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(chosen)], 1)
    ids, gaps, logprobs = (torch.stack(several, 1).numpy() for several in zip(*steps, strict=True))
    return ids.astype(np.int32), gaps, logprobs
