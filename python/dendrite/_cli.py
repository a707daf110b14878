"""The flags of the command `dendrite`; what the commands do is in _commands."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from dendrite import _chat_command, _commands
from dendrite._backends import DEVICE
from dendrite._core import Error

_EPILOG = """\
Things to try, on the model of the clone that the package was built from:

  {prog} solve 4 5 6 10              a tree search: propose steps, judge them, keep the best
  {prog} solve 4 5 6 10 --trace search.jsonl && {prog} trace view search.jsonl
                                         the same as a page to look at
  {prog} generate --prompt $'S 24: 4 5 6 10\\n' --n 4 --temperature 1
                                         four continuations of one prompt in one batch
  {prog} score --prompt $'P 24: 4 5 6 10\\n10-4=6 | 5 6 6\\n?' --continuation s --continuation i
                                         how likely texts are as what comes next
  {prog} chat                        talk with a model that has a chat template (--model)
  {prog} info                        what the model is and what would compute it

`{prog} COMMAND --help` teaches each. The same from Python:

  from dendrite import Engine
  engine = Engine("path/to/model")
  with engine.session(seed=7) as session:
      root = session.prefill("...")
      for out in session.decode(root.fork(8), max_tokens=32, temperature=1.0):
          print(out.text)

Programs add --json and get one JSON object on stdout, on one line, and nothing else there. Exit
status: 0 done, 1 an error (on stderr: what was got and what was expected), 2 wrong usage, 130 after
Ctrl-C. The program `dendrite` that the same sources build knows these commands and flags, too, and
has more: live views, conversations that are compacted, quantities of the tree, benches."""

_GENERATE = """\
Text that must be something: no token is drawn that could not be part of it.

  {prog} generate --prompt TEXT --json-schema person.json
  {prog} generate --prompt TEXT --regex '[0-9]{{4}}-[0-9]{{2}}'
  {prog} generate --prompt TEXT --choice yes --choice no

Stop here and go on elsewhere, with the same tokens as without the stop:

  {prog} generate --prompt TEXT --n 4 --max-tokens 100 --save tree.snap
  {prog} generate --resume tree.snap --max-tokens 100

Sampling flags are not in a snapshot: give them again. A constraint is, and how far each branch has
come in it.

`finish` of a branch: length (--max-tokens), stop (a --stop text, or what it must be is whole), eos,
budget, cancelled, stop_inside (a --stop text inside of what it must be), dead_end. With --json,
logprobs[t] is of the distribution that ids[t] was drawn from: the raw one, before temperature and
filters."""

_CHAT = f"""\
A line is a message, and what begins with / a command:

{textwrap.indent(_chat_command.HELP, "  ")}"""

_SCORE = """\
The prompt is computed once, whatever the number of continuations:

  {prog} score --prompt 'The sky is' --continuation ' blue' --continuation ' green'

prints the log-probability of each (natural, the sum over its tokens). With --json those of every
token as well, and whether greedy decoding would generate the continuation."""

_TRACE = """\
A trace is what `solve --trace FILE`, or session.run_tree(..., trace=FILE), records of a search.
`trace view` makes of it one page with everything inside, for any browser: the tree, each thought
with its value, the path that was kept, and a slider through time."""


def count(text: str) -> int:
    """An int of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}; expected >= 1")
    return value


def size(text: str) -> int:
    """An int of at least 0, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"got {value}; expected >= 0")
    return value


def _device(text: str) -> str:
    if not DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of cpu, cuda, cuda:N")
    return text


def _devices(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no indices such as 0,1") from None


def _common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the model, and what computes it").add_argument
    add(
        "--model",
        metavar="DIR_OR_ID",
        help="a folder, a GGUF file, or an id in the local Hugging Face cache (default: the "
        "shipped dendrite-24); nothing is downloaded",
    )
    add(
        "--device",
        type=_device,
        metavar="{cpu,cuda,cuda:N}",
        default="cpu",
        help="where to compute (cpu); cuda:N is the GPU of index N",
    )
    add(
        "--devices",
        type=_devices,
        metavar="N,N",
        default=(),
        help="devices of that kind that compute the model together, each with its share: their "
        "indices; 0,0 gives on one the bits of two",
    )
    add(
        "--dtype",
        choices=("auto", "f32", "bf16", "f16"),
        default="auto",
        help="compute type; auto: the checkpoint's",
    )
    add(
        "--quantization",
        choices=("fp8", "int8", "int4"),
        default="",
        help="round the matrices of layers when they are loaded: int8 (8.5 bits a weight), int4 "
        "(5), or fp8 (8.1 to 8.5), which rounds no activations on a CPU",
    )
    add(
        "--output-quantization",
        choices=("fp8", "int8"),
        default="",
        help="the same of the matrix that gives the logits (and of the embeddings, where they are "
        "one)",
    )
    add(
        "--kv-dtype",
        choices=("auto", "bf16", "fp8"),
        default="auto",
        help="what K and V are kept as; auto: f32 or bf16, with the compute type; fp8: half of "
        "bf16's memory, less exact (not with a DFlash drafter)",
    )
    add("--threads", type=size, default=0, help="0: one a core")
    add("--seed", type=size, default=0, help="of all random draws (0)")
    add("--page-tokens", type=int, choices=(8, 16, 32), default=16, help="tokens a KV page (16)")
    add("--kv-tokens", type=size, default=0, help="KV pool size in tokens; 0: automatic")
    add(
        "--memory",
        type=size,
        default=0,
        metavar="BYTES",
        help="what weights and KV pages take at most; 0: what is free",
    )
    add(
        "--state-memory",
        type=size,
        default=0,
        metavar="BYTES",
        help="what states of recurrent layers take; 0: on a GPU half of what is free, on a CPU a "
        "quarter, at most 4 GB",
    )
    add(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU: results that do not depend on company (the default; a CPU always is)",
    )
    add(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights, for speed tests",
    )
    add("--json", action="store_true", help="one JSON object on stdout, nothing else there")


def _prompt(parser: argparse.ArgumentParser, *, resumes: bool = False) -> None:
    group = parser.add_argument_group("the prompt: one of these, or text on stdin")
    add = group.add_mutually_exclusive_group().add_argument
    add("--prompt", metavar="TEXT", help="special tokens are added, and parsed where written")
    add("--prompt-ids", metavar="1,2,3", help="token ids, taken as they are")
    add(
        "--messages",
        metavar="FILE.json",
        help="array of {role, content}, rendered with the model's chat template",
    )
    if resumes:
        add(
            "--resume",
            metavar="FILE",
            help="go on with the branches that --save left there; their seed goes on, too",
        )


def _sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "how to draw (else as generation_config.json says)"
    ).add_argument
    add("--max-tokens", type=size, default=256, help="new tokens a branch (256)")
    add("--temperature", type=float, help="0: the likeliest token")
    add("--top-k", type=size, help="keep the k likeliest; 0: all")
    add("--top-p", type=float, help="keep the likeliest up to this probability")
    add("--min-p", type=float, help="keep p >= min-p * largest p")
    add("--repetition-penalty", type=float, help="1: none")
    add(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID:V",
        help="add to a token's logit; -inf: never draw it (repeatable)",
    )
    add("--stop", action="append", default=[], metavar="TEXT", help="end there (repeatable)")
    add("--ignore-eos", action="store_true", help="do not stop at end-of-sequence tokens")
    add("--n", type=count, metavar="BRANCHES", help="that share the prompt (1)")
    add("--top-logprobs", type=size, default=0, metavar="K", help="likeliest to list (--json)")
    add(
        "--speculate",
        default="off",
        metavar="METHOD",
        help="draft tokens, for the same text in fewer steps: suffix, draft_model, dflash, "
        "dflash_ddtree, suffix_dflash, mtp, suffix_mtp, off",
    )
    add("--speculate-budget", type=size, default=16, help="drafted a branch and step (16)")
    add("--draft-model", metavar="DIR_OR_ID", help="a smaller model with the same tokens")
    add(
        "--drafter",
        metavar="DIR_OR_ID",
        help="a block drafter trained for the model (DFlash), or mtp: the model's own MTP head",
    )


def _constraint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the text must be: one of these")
    add = group.add_mutually_exclusive_group().add_argument
    add("--json-schema", metavar="FILE", help="JSON that this schema describes")
    add("--json-object", action="store_true", help="any JSON object")
    add("--regex", metavar="RE", help="what all of it matches, in Rust's syntax")
    add("--grammar", metavar="FILE", help="what this Lark grammar's rule start describes")
    add("--choice", action="append", metavar="TEXT", help="one of these texts (repeatable)")


def parser(prog: str) -> argparse.ArgumentParser:
    """Of all commands."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="Inference for programs that search with a language model.",
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        name: str, what: str, run: Callable[[argparse.Namespace], None], teaches: str = ""
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=teaches.format(prog=prog),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    solve = command(
        "solve", "Game of 24 (and Countdown) by search on the shipped model", _commands.solve
    )
    add = solve.add_argument
    add("numbers", type=int, nargs="+", metavar="N", help="2 to 5 numbers")
    add("--target", type=int, default=24, help="what to make of them (24)")
    add(
        "--strategy",
        choices=_commands.STRATEGIES,
        default="tot",
        help="how to search: Tree of Thoughts (tot), greedy, beam, best-of-n, mcts",
    )
    add(
        "--width",
        type=count,
        default=5,
        help="steps kept at each depth (tot), descents a round (mcts), beams, samples (5)",
    )
    add("--budget-tokens", type=size, default=0, help="to compute at most; 0: no limit")
    add("--trace", metavar="FILE", help="record the search, as JSON lines: see `trace view`")
    _common(solve)

    generate = command(
        "generate", "continue a prompt, on one branch or many", _commands.generate, _GENERATE
    )
    _prompt(generate, resumes=True)
    generate.add_argument(
        "--save",
        metavar="FILE",
        help="afterwards, save the branches (tokens, K and V, random streams) there",
    )
    _sampling(generate)
    _constraint(generate)
    _common(generate)

    chat = command(
        "chat", "a conversation with the model's own template", _chat_command.chat, _CHAT
    )
    add = chat.add_mutually_exclusive_group().add_argument
    add("--messages", metavar="FILE.json", help="start from these messages (a JSON array)")
    add(
        "--resume",
        metavar="FILE",
        help="go on with the conversations that /save left there; their seed goes on, too",
    )
    add = chat.add_argument
    add("--render", action="store_true", help="only print the rendered prompt of --messages")
    add("--max-tokens", type=size, default=256, help="new tokens an answer (256)")
    add("--temperature", type=float, help="0: the likeliest token")
    add("--top-k", type=size, help="keep the k likeliest; 0: all")
    add("--top-p", type=float, help="keep the likeliest up to this probability")
    _common(chat)

    score = command("score", "log-probabilities of continuations", _commands.score, _SCORE)
    _prompt(score)
    add = score.add_argument_group("what to score: at least one").add_argument
    add("--continuation", action="append", default=[], metavar="TEXT", help="(repeatable)")
    add("--continuation-ids", action="append", default=[], metavar="4,5,6", help="(repeatable)")
    _common(score)

    tokenize = command(
        "tokenize", "token ids of the text on stdin, taken byte for byte", _commands.tokenize
    )
    add = tokenize.add_argument
    add("--no-special", action="store_true", help="add no special tokens (BOS and the like)")
    add("--decode", action="store_true", help="the other way: ids on stdin to text")
    _common(tokenize)

    info = command("info", "what a model folder holds and what would compute it", _commands.info)
    _common(info)

    trace = commands.add_parser(
        "trace",
        help="look at the record of a search",
        epilog=_TRACE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    view = trace.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "view",
        help="one page of HTML with the whole search",
        epilog=_TRACE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    view.add_argument("file", metavar="FILE", help="a trace, as JSON lines")
    view.add_argument("--out", metavar="FILE", help="the page (default: beside it, as .html)")
    view.add_argument("--open", action="store_true", help="show it in a browser")
    view.set_defaults(run=_commands.view_trace)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    name = Path(sys.argv[0]).name
    made = parser("dendrite" if name == "dendrite" else "python -m dendrite")
    flags = made.parse_args(arguments)
    if "run" not in flags:
        made.print_help()
        return 2
    if flags.run is _commands.generate and flags.resume and flags.n is not None:
        made.error("argument --n: not allowed with argument --resume")
    try:
        flags.run(flags)
    except (Error, OSError) as error:
        print(f"dendrite: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
