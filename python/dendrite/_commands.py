"""What the commands of `dendrite` do; their flags are in _cli."""

from __future__ import annotations

import argparse
import json
import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dendrite import _core, _game24, _models, notebook
from dendrite._constraint import Choice, Constraint, JsonObject, JsonSchema, Lark, Regex
from dendrite._core import Branch, Error, Generation, Stats
from dendrite._engine import Engine
from dendrite._params import Budget, DecodeParams
from dendrite._records import SearchEvent
from dendrite._session import Session
from dendrite._types import Prompt

STRATEGIES = ("tot", "greedy", "beam", "best-of-n", "mcts")
"""Of `solve`."""


def solve(flags: argparse.Namespace) -> None:
    """Game of 24."""
    numbers = _game24.check_numbers(flags.numbers, flags.target)
    wanted = " ".join(map(str, numbers))
    engine = load(flags)
    if not flags.json:
        print(f"{wanted} -> {flags.target}")
    begin = time.perf_counter()
    with engine.session(seed=flags.seed, budget=Budget(tokens=flags.budget_tokens)) as session:
        strategy = _game24.strategy(flags.strategy, numbers, flags.target, flags.width)
        if not flags.json and flags.strategy in ("tot", "mcts"):
            strategy.on_event = _print_kept
        prompt = _game24.prompt(numbers, flags.target, flags.strategy)
        result = session.run_tree(strategy, prompt, trace=flags.trace)
        branch = result.branch
        steps = _game24.steps_of(result) if branch is not None and result.solved else []
        stats = session.stats()
    seconds = time.perf_counter() - begin
    with engine.session(seed=flags.seed) as beside:  # its tokens are not the search's
        greedy, right = _game24.greedy(beside, numbers, flags.target)
    solution = _game24.expression(numbers, [step["text"] for step in steps]) if steps else None
    why = _game24.reason(result.solved, result.finish)
    if flags.json:
        _print_json(
            {
                "numbers": flags.numbers,
                "target": flags.target,
                "branch": steps[-1]["branch"] if steps else None,
                "solution": solution,
                "reason": why,
                "greedy": {"text": greedy, "solved": right},
                "steps": steps,
                "stats": _stats(stats, seconds),
            }
        )
        return
    print(f"{solution} = {flags.target}" if solution else f"no solution found: {why}")
    print(
        f"greedy decoding alone: {greedy}  ({'right' if right else 'wrong'})\n"
        f"tokens computed {stats.tokens_computed}; as independent prompts "
        f"{stats.tokens_independent}; a fork took {stats.fork_ns:.0f} ns ({stats.forks} forks)\n"
        f"{seconds:.2f} s"
    )


def _print_kept(event: SearchEvent) -> None:
    if event.kind == "kept":
        thought = event.thought
        print(f"{'  ' * thought.depth}+ {thought.text:<24} judge {thought.value:.3f}", flush=True)


def generate(flags: argparse.Namespace) -> None:
    """Continues a prompt."""
    constraint = _constraint(flags)
    engine = load(flags, draft_model=flags.draft_model, drafter=flags.drafter)
    if constraint is not None:
        engine.check(constraint)
    params = DecodeParams(
        max_tokens=flags.max_tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        min_p=flags.min_p,
        repetition_penalty=flags.repetition_penalty,
        logit_bias=dict(map(_bias, flags.logit_bias)) or None,
        stop=flags.stop,
        ignore_eos=flags.ignore_eos,
        top_logprobs=flags.top_logprobs if flags.json else -1,
        speculate=flags.speculate,
        speculate_budget=flags.speculate_budget,
    )
    has_text = engine.info.has_tokenizer
    begin = time.perf_counter()
    session, branches = _resume(flags, engine) if flags.resume else _start(flags, engine)
    if constraint is not None:  # of the branches: --save keeps how far they have come in it
        for branch in branches:
            branch.constrain(constraint)
    stream = len(branches) == 1 and not flags.json and has_text
    with session:
        prompt_ids = branches[0].tokens[: branches[0].prompt_length].tolist()
        outs = session.decode(
            branches,
            params,
            on_token=(lambda event: print(event.text, end="", flush=True)) if stream else None,
        )
        stats = session.stats()
        shortage = session.shortage
        if flags.save:
            session.save(flags.save, branches)
    if shortage is not None:
        print(shortage, file=sys.stderr)
    if flags.json:
        _print_json(
            {
                "prompt_ids": prompt_ids,
                "branches": [_generation(out) for out in outs],
                "stats": _stats(stats, time.perf_counter() - begin),
            }
        )
    elif stream:
        print()
    else:
        for i, out in enumerate(outs):
            text = out.text if has_text else " ".join(map(str, out.ids))
            print(f"--- branch {i + 1}\n{text}" if len(outs) > 1 else text)


def _start(flags: argparse.Namespace, engine: Engine) -> tuple[Session, list[Branch]]:
    session = engine.session(seed=flags.seed)
    root = _prefill(flags, session)
    return session, root.fork(flags.n) if (flags.n or 1) > 1 else [root]


def _resume(flags: argparse.Namespace, engine: Engine) -> tuple[Session, list[Branch]]:
    restored = engine.restore(flags.resume)
    if restored.note:
        print(f"note: {restored.note}", file=sys.stderr)
    if not restored.branches:
        raise Error(f"{flags.resume}: holds no branches; expected at least one to go on with")
    return restored.session, restored.branches


def score(flags: argparse.Namespace) -> None:
    """Log-probs of continuations."""
    if not flags.continuation and not flags.continuation_ids:
        raise Error(
            "score: nothing to score; expected --continuation TEXT or --continuation-ids 4,5,6"
        )
    ids = [_ids(text, "--continuation-ids") for text in flags.continuation_ids]
    begin = time.perf_counter()
    with load(flags).session(seed=flags.seed) as session:
        scores = _prefill(flags, session).score([*flags.continuation, *ids])
        stats = session.stats()
    if flags.json:
        _print_json(
            {
                "scores": [
                    {"logprob": one.logprob, "tokens": list(one.tokens), "greedy": one.greedy}
                    for one in scores
                ],
                "stats": _stats(stats, time.perf_counter() - begin),
            }
        )
        return
    names = [*flags.continuation, *flags.continuation_ids]
    for name, one in zip(names, scores, strict=True):
        print(f"{one.logprob:.6g}\t{name}")


def tokenize(flags: argparse.Namespace) -> None:
    """Text to ids, or back."""
    engine = load(flags, weights=False)
    text = _stdin()
    if flags.decode:
        ids = _ids(text.replace(" ", ",").strip(), "stdin")
    else:
        ids = engine.encode(text, add_special=not flags.no_special).tolist()
    decoded = engine.decode(ids)
    if flags.json:
        _print_json({"ids": ids, "text": decoded})
    else:
        print(decoded if flags.decode else " ".join(map(str, ids)))


def info(flags: argparse.Namespace) -> None:
    """What a model is, and what computes it."""
    engine = load(flags, weights=False)
    i = engine.info
    names = "model_type parameters weight_bytes layers dim ffn_dim heads kv_heads head_dim vocab"
    names += " experts experts_per_token max_positions rope stored_dtype compute_dtype quantization"
    names += " output_quantization kv_dtype kv_token_bytes recurrent_layers state_bytes"
    names += " state_token_bytes mtp_layers bos eos"
    model = {"path": i.model_path} | {name: getattr(i, name) for name in names.split()}
    model |= {"tokenizer": i.has_tokenizer, "chat_template": i.has_chat_template}
    stored = _core.stored_weights(i.model_path)
    weights = [
        {"format": form, "tensors": tensors, "parameters": count, "bytes": size}
        | {"bits_per_weight": round(8 * size / count, 3)}
        for form, tensors, count, size in stored
    ]
    parameters = sum(count for _, _, count, _ in stored)
    bits = 8 * sum(size for _, _, _, size in stored)
    model |= {"active_parameters": (parameters if stored else i.parameters) - i.idle_parameters}
    model |= {"bits_per_weight": round(bits / parameters, 3) if stored else None}
    told = engine.compatibility()
    names = "verdict score largest product products warned incompatible unrounded"
    compatibility = {name: getattr(told, name) for name in names.split()}
    device = {"kind": i.device, "name": i.device_name}
    names = "threads kernels available_kernels attention graphs numerics_key"
    device |= {name: getattr(i, name) for name in names.split()}
    if flags.json:
        model |= {"stored": weights}
        _print_json({"model": model, "compatibility": compatibility, "device": device})
        return
    sections = {"model": model, "compatibility": compatibility, "device": device}
    for section, values in sections.items():
        print(section)
        for name, value in values.items():
            print(f"  {name:<18}{value}")
        for one in weights if section == "model" else ():
            print(
                f"  {'stored':<18}{one['format']}: {one['tensors']} tensors, {one['parameters']} "
                f"parameters, {one['bits_per_weight']:.2f} bits each"
            )


def view_trace(flags: argparse.Namespace) -> None:
    """A page of a trace."""
    file = Path(flags.file)
    out = Path(flags.out) if flags.out else file.with_suffix(".html")
    if out == file or (out.exists() and file.exists() and out.samefile(file)):
        raise Error(f"--out: {out} is the trace; expected another file for the page")
    page, thoughts, end = notebook.read_page(file)
    out.write_text(page, encoding="utf-8")
    print(f"{out}: {thoughts} thought{'' if thoughts == 1 else 's'}, {end}")
    if flags.open and not webbrowser.open(out.resolve().as_uri()):
        raise Error(f"--open: no browser was found for {out}; open it by hand")


def load(flags: argparse.Namespace, **options: Any) -> Engine:
    """The engine of the common flags."""
    return Engine(
        flags.model or _models.find("dendrite-24"),
        device=flags.device,
        devices=flags.devices,
        dtype=flags.dtype,
        quantization=flags.quantization,
        output_quantization=flags.output_quantization,
        kv_dtype=flags.kv_dtype,
        threads=flags.threads,
        page_tokens=flags.page_tokens,
        kv_tokens=flags.kv_tokens,
        memory_bytes=flags.memory,
        state_bytes=flags.state_memory,
        deterministic=flags.deterministic,
        load_format=flags.load_format,
        **options,
    )


def _prefill(flags: argparse.Namespace, session: Session) -> Branch:
    prompt: Prompt
    if flags.prompt_ids is not None:
        prompt = _ids(flags.prompt_ids, "--prompt-ids")
    elif flags.messages is not None:
        prompt = session.engine.render_chat(read_json(flags.messages))
    elif flags.prompt is not None:
        prompt = flags.prompt
    elif sys.stdin.isatty():
        raise Error(
            "no prompt; expected --prompt TEXT, --prompt-ids 1,2,3, --messages FILE.json, or text "
            "on stdin"
        )
    else:
        prompt = _stdin()
    return session.prefill(prompt)


def _stdin() -> str:
    """All of it, byte for byte."""
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{path}: cannot be read ({error}); expected a file of UTF-8 text") from None


def read_json(path: str) -> list[Any]:
    """The messages in a file."""
    try:
        value = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise Error(f"{path}: {error}; expected a JSON array of messages") from None
    if not isinstance(value, list):
        raise Error(f"{path}: expected a JSON array of messages")
    return value


def _ids(text: str, flag: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Error(f'{flag}: got "{text}"; expected ids like 1,2,3') from None


def _bias(text: str) -> tuple[int, float]:
    token, colon, value = text.partition(":")
    try:
        if colon:
            return int(token), float(value)
    except ValueError:
        pass
    raise Error(f'--logit-bias: got "{text}"; expected ID:VALUE like 42:-1.5')


def _constraint(flags: argparse.Namespace) -> Constraint | None:
    if flags.json_schema is not None:
        return JsonSchema(_read(flags.json_schema))
    if flags.json_object:
        return JsonObject()
    if flags.regex is not None:
        return Regex(flags.regex)
    if flags.grammar is not None:
        return Lark(_read(flags.grammar))
    return Choice(flags.choice) if flags.choice else None


def _generation(out: Generation) -> dict[str, Any]:
    return {
        "ids": list(out.ids),
        "text": out.text,
        "finish": out.finish.name.lower(),
        "logprobs": [
            {
                "id": chosen.id,
                "logprob": chosen.logprob,
                "top": [[token.id, token.logprob] for token in chosen.top],
            }
            for chosen in out.logprobs
        ],
    }


def _stats(stats: Stats, seconds: float) -> dict[str, Any]:
    return stats.asdict() | {"seconds": seconds}


def _print_json(value: Sequence[Any] | dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))
