"""`dendrite chat`: a conversation on the terminal, each on a branch of its own."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from contextlib import closing
from typing import Any

from dendrite import _commands
from dendrite._chat import AnswerRules
from dendrite._core import Branch, Error, TokenEvent
from dendrite._engine import Engine
from dendrite._harmony import HarmonyParser, Item, Reasoning
from dendrite._params import DecodeParams
from dendrite._session import Session

HELP = """\
/fork        go on in a copy of this conversation
/branch N    switch to conversation N
/branches    list the conversations
/back N      forget the last N exchanges
/save FILE   save all conversations; dendrite chat --resume FILE goes on with them
/quit        leave (also: end of input, Ctrl-D); Ctrl-C ends an answer"""

_PROGRAM = "dendrite chat"
"""What /save attaches, as the program of C++ does: each goes on with files of the other."""


@dataclasses.dataclass
class _Conversation:
    messages: list[dict[str, Any]]
    branch: Branch | None = None


def chat(flags: argparse.Namespace) -> None:
    """A conversation with the model's own template."""
    if flags.render:
        _render(flags)
        return
    engine = _commands.load(flags)
    engine.render_chat([{"role": "user", "content": "x"}])  # a missing template is said at once
    made = _resume(engine, flags.resume) if flags.resume else _Chat(engine.session(seed=flags.seed))
    if flags.messages:
        made.conversations[0].messages = _commands.read_json(flags.messages)
    made.params = DecodeParams(
        max_tokens=flags.max_tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
    )
    with made.session:
        made.run(bool(flags.resume))


def _render(flags: argparse.Namespace) -> None:
    if not flags.messages:
        raise Error("chat --render: expected --messages FILE.json")
    engine = _commands.load(flags, weights=False)
    text = engine.render_chat(_commands.read_json(flags.messages))
    if flags.json:
        print(json.dumps({"text": text, "ids": engine.encode(text).tolist()}, ensure_ascii=False))
    else:
        print(text, end="")


def _resume(engine: Engine, file: str) -> _Chat:
    restored = engine.restore(file)
    try:
        saved = json.loads(restored.attachment)
        is_chat = saved["program"] == _PROGRAM
    except (ValueError, KeyError, TypeError):
        is_chat = False
    if not is_chat:
        raise Error(
            f"{file}: holds no conversation; expected a file that /save of dendrite chat wrote"
        )
    if restored.note:
        print(f"note: {restored.note}", file=sys.stderr)
    made = _Chat(restored.session)
    branches = {branch.id: branch for branch in restored.branches}
    try:
        made.conversations = [
            _Conversation(one["messages"], branches[one["branch"]] if one["branch"] else None)
            for one in saved["conversations"]
        ]
        made.current = saved["current"]
        assert made.conversations[made.current].messages is not None
    except (KeyError, IndexError, TypeError) as error:
        raise Error(f"{file}: its conversations cannot be read: {error!r}") from error
    return made


class _Said:
    """An answer as it comes: what of it is shown, and the message that it becomes."""

    def __init__(self, harmony: HarmonyParser | None) -> None:
        self._harmony = harmony
        self.message: dict[str, Any] = {"role": "assistant", "content": ""}

    def add(self, event: TokenEvent) -> str:
        """What is shown of a token."""
        if self._harmony is None:
            return self._note([event.text])
        return self._note(self._harmony.feed(event.token, event.text))

    def rest(self) -> str:
        """What is shown when the answer has ended."""
        return "" if self._harmony is None else self._note(self._harmony.finish())

    def _note(self, items: list[Item]) -> str:
        shown = ""
        for item in items:
            if isinstance(item, Reasoning):
                self.message.setdefault("reasoning_content", "")
                self.message["reasoning_content"] += item.text
                shown += item.text
            elif isinstance(item, str):
                if not self.message["content"] and "reasoning_content" in self.message:
                    shown += "\n\n"  # behind what was thought
                self.message["content"] += item
                shown += item
        return shown


class _Chat:
    """All conversations of one session, and which one goes on."""

    params: DecodeParams

    def __init__(self, session: Session) -> None:
        self.session = session
        self.rules = AnswerRules(session.engine)
        self.conversations = [_Conversation([])]
        self.current = 0

    def run(self, resumed: bool) -> None:
        """Until /quit or the end of input."""
        terminal = sys.stdin.isatty()
        if terminal:
            if resumed:
                self._command("/branches")
            print("Type a message, or /help.")
        while True:
            try:
                line = input(f"[{self.current + 1}] > " if terminal else "")
            except EOFError:
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        now = self.conversations[self.current]
        now.messages.append({"role": "user", "content": line})
        try:
            prompt = self.rules.prompt(now.messages)
        except (Error, ValueError) as error:
            now.messages.pop()
            print(f"no answer: {error}", file=sys.stderr)
            return
        said = _Said(self.rules.parser((), prompt))
        stops = self.rules.stops(self.params.stop_tokens, self.params.ignore_eos)
        params = dataclasses.replace(self.params, stop_tokens=stops)
        try:
            before = now.branch
            now.branch = self.session.prefill(prompt)
            if before is not None:  # (held until here: what both have in common is not computed)
                before.prune()
            with closing(self.session.stream(now.branch, params)) as steps:
                for events in steps:
                    for event in events:
                        print(said.add(event), end="", flush=True)
        except KeyboardInterrupt:
            pass  # what came until here is the answer
        except Error as error:
            now.messages.pop()
            print(f"no answer: {error}", file=sys.stderr)
            return
        print(said.rest(), flush=True)
        if self.session.shortage is not None:
            print(f"note: the answer was cut short: {self.session.shortage}", file=sys.stderr)
        now.messages.append(said.message)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        number = int(rest) if rest.strip().isdecimal() else 0
        now = self.conversations[self.current]
        if name == "/fork":
            branch = now.branch.fork() if now.branch is not None else None
            self.conversations.append(_Conversation(list(now.messages), branch))
            self.current = len(self.conversations) - 1
            print(f"now in conversation {self.current + 1}")
        elif name == "/branch" and 1 <= number <= len(self.conversations):
            self.current = number - 1
        elif name == "/branches":
            for i, one in enumerate(self.conversations):
                tokens = len(one.branch) if one.branch is not None else 0
                mark = "*" if i == self.current else " "
                print(f"{mark} {i + 1}: {len(one.messages)} messages, {tokens} tokens")
        elif name == "/back":
            for _ in range(max(1, number)):
                while now.messages and now.messages.pop()["role"] != "user":
                    pass
            print(f"{len(now.messages)} messages left")
        elif name == "/save" and rest:
            self._save(rest)
        else:
            print(HELP)

    def _save(self, file: str) -> None:
        """What goes wrong is said, and the conversation goes on."""
        saved = [
            {"messages": one.messages, "branch": one.branch.id if one.branch is not None else 0}
            for one in self.conversations
        ]
        live = sum(one["branch"] != 0 for one in saved)
        if live == 0:
            print("nothing to save yet")
            return
        all_of_it = {"program": _PROGRAM, "current": self.current, "conversations": saved}
        try:
            self.session.save(file, attachment=json.dumps(all_of_it))
        except Error as error:
            print(f"not saved: {error}")
            return
        print(f"saved {live} conversation{'' if live == 1 else 's'} to {file}")
