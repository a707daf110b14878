"""A code-repair agent: five strategies race on forks of one broken program until a test passes.

    code_repair.py [--model DIR] [--device cpu|cuda] [--seed N] [--test CMD]
                   [--prompt-template FILE] [PROGRAM]

The shipped model does it for the toy language that it was trained on (examples/data); with
--prompt-template any model does it for any language: {program} and {error} stand for the broken
program and what its test said, and what the model writes behind it, to its end or to a line ```, is
the new program. CMD gets the candidate's file; exit status 0: it passes. It runs in a sandbox, and
the line that its output names last ("candidate.py:7", "line 7") is where the program is rewound to.

Each attempt is a task: it decodes in the engine's shared steps, and while its test runs, the branch
is on hold and the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Coroutine

import numpy as np
import sandbox
from numpy.typing import NDArray

from dendrite import Branch, Budget, DecodeParams, Engine, Session
from dendrite.search import TreeOfThoughts, expand_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKER = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'examples/check_derivation.py'))}"
SAMPLES = 6  # of the strategy that samples
ROUNDS = 4  # that it has, each from the failure of the one before
LIMITS = sandbox.Limits(seconds=10)

WHOLE = DecodeParams(max_tokens=512, stop=["\n```"], temperature=0)
LINE = DecodeParams(max_tokens=128, stop=["\n"], temperature=0)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a test said of a program."""

    passed: bool
    line: int  # where it fails, from 1; 0: the test names none
    output: str
    message: str  # in a line


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What passes, and whose it is."""

    program: str
    strategy: str


def first_lines(text: str, count: int) -> str:
    return "".join(text.splitlines(keepends=True)[: max(count, 0)])


def with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


class Tests:
    """Runs tests, two at once; equal programs are tested once."""

    def __init__(self, command: str, suffix: str) -> None:
        self._command = command
        self._file = "candidate" + suffix
        self._slots = asyncio.Semaphore(2)
        self._known: dict[str, asyncio.Task[Verdict]] = {}

    async def run(self, program: str) -> Verdict:
        if program not in self._known:
            self._known[program] = asyncio.create_task(self._run(program))
        return await self._known[program]

    async def _run(self, program: str) -> Verdict:
        async with self._slots:
            command = ["/bin/sh", "-c", f'{self._command} "$1"', "sh", self._file]
            outcome = await sandbox.run(command, {self._file: program}, LIMITS)
        in_file = re.findall(r'candidate[^\s:",]*"?(?::|, line )(\d{1,6})', outcome.output)
        in_words = re.findall(r"\bline (\d{1,6})", outcome.output)
        line = int((in_file or in_words or ["0"])[-1])
        message = (outcome.output.splitlines() or [outcome.end])[0]
        return Verdict(outcome.passed, line, outcome.output, message)

    def __len__(self) -> int:
        return len(self._known)

    def cancel(self) -> None:
        for test in self._known.values():
            test.cancel()


class Agent:
    def __init__(
        self, session: Session, program: str, tests: Tests, template: str, show: Callable[..., None]
    ) -> None:
        self._session, self._aio, self._tests = session, session.aio, tests
        self._program, self._template, self._show = program, template, show
        # The file is head and body; in the toy language the head is what the model is asked.
        self._head = "" if template else first_lines(program, 1)
        self._body = program[len(self._head) :]

    async def repair(self) -> Repaired | None:
        """A program that passes, by whichever strategy is first; None: there is none."""
        failure = await self._tests.run(self._program)
        self._show("the program", "passes" if failure.passed else f"fails: {failure.message}")
        if failure.passed:
            return Repaired(self._program, "none")
        attempts = [asyncio.create_task(each) for each in await self._attempts(failure)]
        try:
            for attempt in asyncio.as_completed(attempts):
                if (found := await attempt) is not None:
                    self._show(found.strategy, "PASSED")
                    return found
            return None
        finally:  # the losers leave the batch, and their branches are pruned
            self._tests.cancel()
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _attempts(self, failure: Verdict) -> list[Coroutine[None, None, Repaired | None]]:
        head, body = len(self._head.splitlines()), len(self._body.splitlines())
        good = min(max(failure.line - 1 - head, 0), body)  # lines before the one that fails
        encode = self._session.engine.encode
        prompt = encode(self._prompt(failure))
        self._prompt_tokens = len(prompt)
        tokens = np.concatenate([prompt, encode(self._body, add_special=False)])
        self._whole = await self._aio.prefill(tokens)
        sampled = WHOLE.replace(temperature=1.0)
        return [
            self._attempt("1 rewrite the last line", body - 1, LINE),
            self._attempt(f"2 rewind to line {good + head + 1}, greedy", good, WHOLE),
            *(
                self._attempt(f"3.{i} rewind, sample and revise", good, sampled, ROUNDS)
                for i in range(1, SAMPLES + 1)
            ),
            self._attempt("4 start over", 0, WHOLE),
            self._search("5 start over step by step, with a judge", prompt),
        ]

    def _prompt(self, failure: Verdict) -> str:
        if not self._template:
            return self._head
        given = {"program": self._program, "error": failure.output}
        return re.sub(r"\{(program|error)\}", lambda found: given[found[1]], self._template)

    async def _attempt(
        self, name: str, lines: int, params: DecodeParams, rounds: int = 1
    ) -> Repaired | None:
        """Keeps so many lines of the program and writes the rest. What fails is rewound to where
        its own test failed, one line further each round, and tried again."""
        kept, come_from = first_lines(self._body, lines), self._whole
        for round in range(rounds):
            with self._rewind(come_from, kept) as branch:
                generation = await self._aio.decode(branch, params)
                body = kept + with_newline(generation.text)
                with branch.hold(2 * LIMITS.seconds):  # its pages stay: a revision needs them
                    verdict = await self._tests.run(self._head + body)
                if verdict.passed:
                    return Repaired(self._head + body, name)
                self._show(name, f"failed: {verdict.message}")
                good = verdict.line - 1 - len(self._head.splitlines())
                kept = first_lines(body, good - round)
                come_from = branch.fork()
        return None

    def _rewind(self, branch: Branch, kept: str) -> Branch:
        """A fork that has the prompt and `kept`, a prefix of what follows there. Tokens that spell
        it are shared; where one spans its end, the text is encoded anew from there on."""
        length, text = self._prompt_tokens, ""
        for token in branch.tokens[length:]:
            longer = text + self._session.engine.decode([int(token)])
            if not kept.startswith(longer):
                break
            length, text = length + 1, longer
        fork = branch.at(length)
        return fork.append(kept[len(text) :]) if len(text) < len(kept) else fork

    async def _search(self, name: str, prompt: NDArray[np.int32]) -> Repaired | None:
        """Tree-of-Thoughts, a line a step. The shipped model proposes in a mode of its own and
        judges a state by its answer to "?"; another model goes by the likelihood of its lines."""
        loop, passed = asyncio.get_running_loop(), ""

        def solved(branch: Branch, _: str) -> bool:  # in the search's own thread
            nonlocal passed
            program = self._head + with_newline(branch.text)
            test = asyncio.run_coroutine_threadsafe(self._tests.run(program), loop)
            passed = program if test.result().passed else ""
            return bool(passed)

        strategy = TreeOfThoughts(depth=64, width=3, solved=solved)
        strategy.steps.candidates = 6
        start: str | NDArray[np.int32] = prompt
        if not self._template:
            start = "P" + self._head[1:]
            strategy.depth = len(self._head.split()) - 3  # numbers, less one
            newline = int(self._session.engine.encode("\n", add_special=False)[-1])
            strategy.steps.propose = lambda s, nodes: expand_until(s, nodes, newline, 0.003, 32)
            strategy.steps.judgement.judge = lambda s, nodes: [
                sure.logprob - impossible.logprob
                for sure, impossible in s.score(nodes, ["?s", "?i"])
            ]
        result = await self._aio.run_tree(strategy, start)
        if result.solved:
            return Repaired(passed, name)
        self._show(name, "failed: no solution found")
        return None


async def repair(
    engine: Engine,
    program: str,
    *,
    test: str = CHECKER,
    suffix: str = ".24",
    template: str = "",
    seed: int = 1,
    show: Callable[..., None] = print,
) -> Repaired | None:
    """See above; `show` is called with a name and what became of it."""
    with engine.session(seed=seed, budget=Budget(tokens=200_000)) as session:
        tests = Tests(test, suffix)
        found = await Agent(session, program, tests, template, show).repair()
        stats = session.stats()
        show("in all", f"{len(tests)} programs tested, {stats.forks} forks")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", nargs="?", default=ROOT / "examples/data/wrong_product.24")
    parser.add_argument("--model", default=ROOT / "models/dendrite-24")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test", default=CHECKER)
    parser.add_argument("--prompt-template", type=pathlib.Path)
    options = parser.parse_args()
    path = pathlib.Path(options.program)
    template = options.prompt_template.read_text() if options.prompt_template else ""
    with Engine(options.model, device=options.device) as engine:
        work = repair(
            engine,
            path.read_text(),
            test=options.test,
            suffix=path.suffix,
            template=template,
            seed=options.seed,
        )
        found = asyncio.run(work)
    print(f"\nrepaired:\n{found.program}" if found else "\nnot repaired", end="\n" * (not found))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
