"""python -m dendrite: a model at work from the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from dendrite import Budget, Engine, Error, SearchEvent, _game24, _models

_HELP = """\
Three things to try, on the model of the clone that the package was built from:

  python -m dendrite solve 4 5 6 10         a tree search: propose steps, judge them, keep the best
  python -m dendrite generate $'S 24: 4 5 6 10\\n' --n 4 --temperature 1
                                            four continuations of one prompt in one batch
  python -m dendrite info                   what the model is and what would compute it

The same from Python:

  from dendrite import Engine
  engine = Engine("path/to/model")
  with engine.session(seed=7) as session:
      root = session.prefill("...")
      for out in session.decode(root.fork(8), max_tokens=32, temperature=1.0):
          print(out.text)

The program `dendrite`, built from the same sources, has more: chat, score, traces, live views."""


def _solve(flags: argparse.Namespace) -> None:
    numbers = _game24.check_numbers(flags.numbers, flags.target)
    strategy = _game24.tree_of_thoughts(numbers, flags.target, flags.width)
    if not flags.json:
        print(f"{' '.join(map(str, numbers))} -> {flags.target}")
        strategy.on_event = _print_kept
    begin = time.perf_counter()
    budget = Budget(tokens=flags.budget_tokens)
    with _load(flags).session(seed=flags.seed, budget=budget) as session:
        prompt = _game24.prompt(numbers, flags.target)
        result = session.run_tree(strategy, prompt, trace=flags.trace)
        stats = session.stats()
    seconds = time.perf_counter() - begin
    steps = result.path if result.solved else []
    solution = _game24.expression(numbers, [s.text for s in steps]) if steps else None
    why = _game24.reason(result.solved, result.finish)
    if flags.json:
        _print_json(
            {
                "numbers": flags.numbers,
                "target": flags.target,
                "branch": steps[-1].branch_id if steps else None,
                "solution": solution,
                "reason": why,
                "steps": [{"text": s.text, "branch": s.branch_id, "value": s.value} for s in steps],
                "stats": stats.asdict() | {"seconds": seconds},
            }
        )
        return
    print(f"{solution} = {flags.target}" if solution else f"no solution found: {why}")
    print(
        f"tokens computed {stats.tokens_computed}; as independent prompts "
        f"{stats.tokens_independent}; a fork took {stats.fork_ns:.0f} ns ({stats.forks} forks)\n"
        f"{seconds:.2f} s with loading"
    )


def _print_kept(event: SearchEvent) -> None:
    if event.kind == "kept":
        thought = event.thought
        print(f"{'  ' * thought.depth}+ {thought.text:<24} judge {thought.value:.3f}", flush=True)


def _generate(flags: argparse.Namespace) -> None:
    with _load(flags).session(seed=flags.seed) as session:
        root = session.prefill(flags.prompt)
        branches = root.fork(flags.n) if flags.n > 1 else [root]
        stream = flags.n == 1 and not flags.json
        outs = session.decode(
            branches,
            max_tokens=flags.max_tokens,
            temperature=flags.temperature,
            stop=flags.stop,
            on_token=(lambda event: print(event.text, end="", flush=True)) if stream else None,
        )
        stats = session.stats()
    if flags.json:
        texts = [{"text": out.text, "finish": out.finish.name.lower()} for out in outs]
        _print_json({"branches": texts, "stats": stats.asdict()})
    elif stream:
        print()
    else:
        for i, out in enumerate(outs):
            print(f"--- branch {i + 1}\n{out.text}")


def _info(flags: argparse.Namespace) -> None:
    info = _load(flags, weights=False).info.asdict()
    if flags.json:
        _print_json(info)
        return
    for name, value in info.items():
        print(f"{name:<18} {value}")


def _load(flags: argparse.Namespace, *, weights: bool = True) -> Engine:
    model = flags.model or _models.find("dendrite-24")
    return Engine(model, device=flags.device, threads=flags.threads, weights=weights)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}; expected >= 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dendrite",
        description="Inference for programs that search with a language model.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, what: str, run: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=what, description=what)
        added.set_defaults(run=run)
        added.add_argument(
            "--model",
            help="model folder, or an id in the local Hugging Face cache; none: the shipped "
            "dendrite-24",
        )
        added.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="computes")
        added.add_argument("--threads", type=int, default=0, help="0: one a core")
        added.add_argument("--json", action="store_true", help="one JSON object, nothing else")
        return added

    solve = command("solve", "Game of 24 (and Countdown) by search on the shipped model", _solve)
    solve.add_argument("numbers", type=int, nargs="+", metavar="N", help="2 to 5 numbers")
    solve.add_argument("--target", type=int, default=24, help="what to make of them (24)")
    solve.add_argument("--width", type=_count, default=5, help="steps kept at each depth (5)")
    solve.add_argument("--seed", type=int, default=0, help="of all random draws")
    solve.add_argument("--budget-tokens", type=int, default=0, help="to compute; 0: no limit")
    solve.add_argument("--trace", metavar="FILE", help="record the search, as JSON lines")

    generate = command("generate", "continue a prompt, on one branch or many", _generate)
    generate.add_argument("prompt", help="special tokens are added and parsed")
    generate.add_argument("--max-tokens", type=int, default=256, help="new tokens a branch (256)")
    generate.add_argument("--temperature", type=float, help="0: greedy; none: the model's own")
    generate.add_argument("--stop", action="append", default=[], help="end there (repeatable)")
    generate.add_argument("--n", type=_count, default=1, help="branches that share the prompt")
    generate.add_argument("--seed", type=int, default=0, help="of all random draws")

    command("info", "what a model folder holds and what would compute it", _info)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    if "run" not in flags:
        parser.print_help()
        return 2
    try:
        flags.run(flags)
    except (Error, OSError) as error:
        print(f"dendrite: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
