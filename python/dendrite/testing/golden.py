"""Whether an engine computes what Hugging Face transformers does.

    python -m dendrite.testing.golden MODEL --goldens DIR
    python -m dendrite.testing.golden MODEL --hf [--prompts FILE]

compares with references that were written down, or with transformers itself, run in float32 (which
needs torch and transformers). It exits with 1 where they differ. What is compared:

logits     relative error, |ours - theirs| / |theirs|, at 12 positions of a sequence of 130 tokens:
           in f32 at most 1e-4; in half precision at most 1.25 times what transformers loses by it
tokens     50 prompts, 128 greedy tokens each: equal wherever the best logit leads by more than the
           tolerance, and up to the first other token where it does not
log-probs  of the reference's tokens, all of them, by one score pass a prompt: within the tolerance
vectors    Engine.embed of beginnings of the sequence, by "last_token" and by "mean": relative
           error, within the bounds of logits

The tolerance of a logit is 8 times that bound of the logits' root mean square: a relative error is
spread over many. DIR has golden.safetensors, golden.json and, for 50 prompts, greedy50.safetensors:
tools/golden writes them and describes them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dendrite import Engine, Error

_F32_BOUND = 1e-4
_HALF_SHARE = 1.25
_DEVIATIONS = 8


@dataclass(frozen=True)
class Reference:
    """What transformers computes. One sequence, of whose logits some are known, and prompts with
    their greedy tokens."""

    input_ids: NDArray[np.int32]
    """[tokens] of one sequence."""
    positions: NDArray[np.int32]
    """[positions] whose logits are known."""
    logits: NDArray[np.float32]
    """[positions, vocab], f32."""
    half_error: float | None
    """What transformers loses in half precision; None: unknown."""
    prompts: list[NDArray[np.int32]]
    """Token ids of each."""
    ids: NDArray[np.int32]
    """[prompts, steps] greedy tokens."""
    gap: NDArray[np.float32]
    """[prompts, steps] by how much the best logit leads."""
    logprob: NDArray[np.float32]
    """[prompts, steps] of ids."""
    ends: NDArray[np.int32]
    """[texts] the last positions of beginnings of input_ids that are texts to embed."""
    last: NDArray[np.float32]
    """[texts, dim] last_hidden_state of their last tokens: behind the final norm, f32."""
    mean: NDArray[np.float32]
    """[texts, dim] its means over all of their tokens."""
    half_error_vectors: float | None
    """What transformers loses of these in half precision, see vector_error; None: unknown."""


@dataclass(frozen=True)
class Report:
    """What a comparison found."""

    logit_error: float
    """Relative."""
    logit_bound: float
    """That it must not exceed."""
    prompts: int
    """Compared."""
    tokens: int
    """Compared."""
    wrong: list[tuple[int, int, float]]
    """(prompt, step, gap) of tokens that had to be equal."""
    near_ties: int
    """Prompts that took another of two likeliest tokens, which is allowed."""
    logprob_error: float
    """The largest."""
    tolerance: float
    """Of a logit, of a log-prob, and of a gap."""
    vector_error: float
    """Relative."""
    vector_bound: float
    """That it must not exceed."""

    @property
    def passed(self) -> bool:
        """Whether all was within tolerance."""
        return (
            self.logit_error <= self.logit_bound
            and not self.wrong
            and self.logprob_error <= self.tolerance
            and self.vector_error <= self.vector_bound
        )

    def __str__(self) -> str:
        def verdict(good: bool) -> str:
            return "ok" if good else "FAILED"

        first = ", ".join(f"prompt {k} step {i} (gap {gap:.3g})" for k, i, gap in self.wrong[:3])
        return "\n".join(
            [
                f"logits     relative error {self.logit_error:.2e}, at most "
                f"{self.logit_bound:.2e}: " + verdict(self.logit_error <= self.logit_bound),
                f"tokens     {self.tokens} of {self.prompts} prompts, {len(self.wrong)} wrong, "
                f"{self.near_ties} prompts left at a gap below {self.tolerance:.2e}: "
                + verdict(not self.wrong)
                + (f"; first: {first}" if first else ""),
                f"log-probs  largest error {self.logprob_error:.2e}, at most {self.tolerance:.2e}: "
                + verdict(self.logprob_error <= self.tolerance),
                f"vectors    relative error {self.vector_error:.2e}, at most "
                f"{self.vector_bound:.2e}: " + verdict(self.vector_error <= self.vector_bound),
            ]
        )


def read(folder: str | os.PathLike[str]) -> Reference:
    """The references in a folder. Raises Error naming what is missing."""
    path = Path(folder)
    for name in ("golden.safetensors", "golden.json"):
        if not (path / name).is_file():
            raise Error(f"{path / name} is missing; expected a folder that tools/golden wrote")
    golden = read_safetensors(path / "golden.safetensors")
    facts = json.loads((path / "golden.json").read_text())
    many = path / "greedy50.safetensors"
    if many.is_file():
        greedy = read_safetensors(many)
        prompts = np.split(greedy["prompt_ids"], greedy["prompt_offsets"][1:-1])
        ids, gap, logprob = (greedy[name] for name in ("ids", "gap", "logprob"))
    else:
        prompts = [golden["input_ids"][: facts["greedy"]["prompt_tokens"]]]
        ids, gap, logprob = (golden[f"greedy_{name}"][None] for name in ("ids", "gap", "logprob"))
    return Reference(
        golden["input_ids"],
        golden["positions"],
        golden["logits_f32"],
        facts["half_error"],
        prompts,
        ids,
        gap,
        logprob,
        golden["hidden_positions"],
        golden["hidden_f32"][-1],
        golden["hidden_mean_f32"],
        facts["half_error_vectors"],
    )


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file that numpy has a type for."""
    types = {"I32": np.int32, "F32": np.float32, "F16": np.float16}
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, tensor in json.loads(data[8:start]).items():
        if name != "__metadata__" and tensor["dtype"] in types:
            begin, end = tensor["data_offsets"]
            flat = np.frombuffer(data[start + begin : start + end], types[tensor["dtype"]])
            tensors[name] = flat.reshape(tensor["shape"])
    return tensors


def compare(engine: Engine, reference: Reference) -> Report:
    """What this engine computes, against the references."""
    vocab = reference.logits.shape[1]
    if vocab != engine.info.vocab:
        raise Error(
            f"the goldens are of a vocabulary of {vocab}; expected {engine.info.vocab}, the model's"
        )
    dtype = engine.info.compute_dtype
    if dtype == "f32":
        bound = vector_bound = _F32_BOUND
    elif reference.half_error is not None and reference.half_error_vectors is not None:
        bound = _HALF_SHARE * reference.half_error
        vector_bound = _HALF_SHARE * reference.half_error_vectors
    else:
        raise Error(f"dtype is {dtype}, and what transformers loses by it is unknown; expected f32")
    rms = float(np.sqrt(np.mean(reference.logits.astype(np.float64) ** 2)))
    tolerance = _DEVIATIONS * bound * rms
    tokens, wrong, ties = _compare_tokens(engine, reference, tolerance)
    return Report(
        logit_error=_logit_error(engine, reference),
        logit_bound=bound,
        prompts=len(reference.prompts),
        tokens=tokens,
        wrong=wrong,
        near_ties=ties,
        logprob_error=_logprob_error(engine, reference),
        tolerance=tolerance,
        vector_error=_vector_error(engine, reference),
        vector_bound=vector_bound,
    )


def _vector_error(engine: Engine, reference: Reference) -> float:
    """Over the vectors of both kinds, each divided by the length of the reference's."""
    texts = [reference.input_ids[: end + 1] for end in reference.ends]
    ours = [engine.embed(texts, pooling=how, normalize=False) for how in ("last_token", "mean")]
    theirs = np.concatenate([reference.last, reference.mean]).astype(np.float64)
    lengths = np.linalg.norm(theirs, axis=1, keepdims=True)
    error = np.linalg.norm((np.concatenate(ours) - theirs) / lengths)
    return float(error / np.sqrt(len(theirs)))


def _logit_error(engine: Engine, reference: Reference) -> float:
    with engine.session() as session:
        branch = session.prefill(reference.input_ids)
        tips = [branch.at(int(position) + 1) for position in reference.positions]
        ours = session.distributions(tips).astype(np.float64)
    error = np.linalg.norm(ours - reference.logits) / np.linalg.norm(reference.logits)
    return float(error)


def _compare_tokens(
    engine: Engine, reference: Reference, tolerance: float
) -> tuple[int, list[tuple[int, int, float]], int]:
    """(tokens compared, those that had to be equal and were not, prompts left at a near tie)"""
    steps = reference.ids.shape[1]
    with engine.session() as session:
        branches = [session.prefill(prompt) for prompt in reference.prompts]
        out = session.decode(branches, max_tokens=steps, temperature=0.0, ignore_eos=True)
    compared, wrong, ties = 0, [], 0
    for k, (generation, ids) in enumerate(zip(out, reference.ids, strict=True)):
        different = np.flatnonzero(np.asarray(generation.ids, np.int32) != ids)
        compared += steps
        if len(different):
            step = int(different[0])
            compared += step + 1 - steps
            gap = float(reference.gap[k, step])
            if gap > tolerance:
                wrong.append((k, step, gap))
            else:
                ties += 1
    return compared, wrong, ties


def _logprob_error(engine: Engine, reference: Reference) -> float:
    largest = 0.0
    with engine.session() as session:
        for prompt, ids, theirs in zip(
            reference.prompts, reference.ids, reference.logprob, strict=True
        ):
            with session.prefill(prompt) as branch:
                (score,) = branch.score([ids])
            ours = np.asarray(score.tokens, np.float32)
            if len(ours) != len(theirs):
                raise Error("log-probs could not be computed; expected KV pages for a prompt")
            largest = max(largest, float(np.abs(ours - theirs).max()))
    return largest


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0: all within tolerance."""
    parser = argparse.ArgumentParser(
        prog="python -m dendrite.testing.golden",
        description="Whether an engine computes what Hugging Face transformers does.",
    )
    parser.add_argument("model", help="a folder in Hugging Face layout, or an id in the cache")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--goldens", metavar="DIR", help="references that tools/golden wrote")
    source.add_argument("--hf", action="store_true", help="run transformers now, in float32")
    parser.add_argument("--prompts", metavar="FILE", help="with --hf: one prompt a line")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--dtype", default="f32", help="f32, bf16 or f16 (default: f32)")
    options = parser.parse_args(arguments)
    try:
        with Engine(options.model, device=options.device, dtype=options.dtype) as engine:
            if options.hf:
                from dendrite.testing import hf

                reference = hf.run(engine, Path(options.prompts) if options.prompts else None)
            else:
                reference = read(options.goldens)
            report = compare(engine, reference)
    except (Error, OSError) as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
