"""Harmony, the format of OpenAI's open models (gpt-oss): messages to their templates, and answers
to thoughts, content and calls. What a parser makes of an answer is told in dendrite/harmony.h."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dendrite._core import Error
from dendrite.tools import ToolCall, function_of

if TYPE_CHECKING:
    from dendrite._engine import Engine

MARKS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
"""What stands between the parts of a message."""

_OPTIONAL = {"<|constrain|>", "<|return|>"}
_SYSTEM = ("system", "developer")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_SPLIT = re.compile("(" + "|".join(map(re.escape, MARKS)) + ")")
_ROLE = re.compile(r"assistant\s*(t(o(=.*)?)?)?", re.DOTALL)
_JSON = json.JSONDecoder(strict=False)

Message: TypeAlias = Mapping[str, Any]


class Reasoning(NamedTuple):
    """A piece of what was thought."""

    text: str
    """What it adds to the thoughts."""


Item: TypeAlias = str | Reasoning | ToolCall


def marks_of(engine: Engine) -> dict[str, int] | None:
    """The tokens that the marks are, of a model whose template writes them; else None."""
    probe = [{"role": role, "content": "probe"} for role in ("user", "assistant", "user")]
    try:
        text: str = engine.render_chat(probe)
        if "<|start|>assistant<|channel|>final<|message|>" not in text:
            return None
        ids = {mark: engine.encode(mark, add_special=False) for mark in MARKS}
    except Error:  # it has no template, or no tokenizer
        return None
    marks = {m: int(i[0]) for m, i in ids.items() if len(i) == 1 and i[0] < engine.info.vocab}
    return marks if marks.keys() | _OPTIONAL == set(MARKS) else None


def ends_of(marks: Mapping[str, int], eos: Sequence[int]) -> list[int]:
    """The tokens that end an answer though the model's files don't list them."""
    return [marks[mark] for mark in _ENDS[1:] if mark in marks and marks[mark] not in eos]


def messages_for(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages so that such a template loses nothing of them: it knows a system message at the
    front alone, writes one call of a message and takes results for that call's, and refuses
    thoughts beside content in a message with calls."""
    told = [m["content"] for m in messages if m.get("role") in _SYSTEM]
    out: list[dict[str, Any]] = []
    if any(told):
        out.append({"role": "system", "content": "\n".join(filter(None, told))})
    rest = [dict(message) for message in messages if message.get("role") not in _SYSTEM]
    while rest:
        message = rest.pop(0)
        calls = message.pop("tool_calls", None)
        if not calls:
            out.append(message)
            continue
        results = []
        while rest and rest[0].get("role") == "tool":
            results.append(rest.pop(0))
        for name in ("reasoning_content", "thinking", "reasoning"):
            if message["content"] and message.get(name):
                message |= {name: f"{message[name]}\n\n{message['content']}", "content": ""}
        for i, call in enumerate(calls):
            out.append({**(message if i == 0 else _EMPTY), "tool_calls": [call]})
            is_last = i + 1 == len(calls)
            own = [r for r in results if is_last or r.get("tool_call_id") == call.get("id")]
            results = [r for r in results if r not in own]
            out += own
    return out


_EMPTY = {"role": "assistant", "content": ""}


def tools_for(tools: Sequence[Message]) -> list[Message]:
    """Tools with a description each, without which such a template fails."""
    functions = [function_of(tool) for tool in tools]
    return [
        {"type": "function", "function": {**f, "description": f.get("description") or ""}}
        for f in functions
    ]


def variables_for(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The template's variables with a reasoning_effort that the models know."""
    effort = variables.get("reasoning_effort")
    if effort is None:
        low = variables.get("enable_thinking") is False
        return {**variables, "reasoning_effort": "low"} if low else dict(variables)
    known = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
    return {**variables, "reasoning_effort": known.get(effort, effort)}


class HarmonyParser:
    """Splits one answer, as it is generated, into thoughts, content and calls of `tools`."""

    def __init__(self, tools: Sequence[Message], marks: Mapping[str, int], prompt: str) -> None:
        self._names = {function_of(tool)["name"] for tool in tools}
        self.marks = {token: mark for mark, token in marks.items()}
        self._thinks = False  # what of a message is thought
        self._tool: str | None  # that it may call
        self._place: str
        self._role: str
        self._channel: str
        self._held: str  # of the message
        self._reset()
        begin = prompt.rfind("<|start|>")
        told: list[Item] = []
        for part in _SPLIT.split(prompt[begin:]) if begin >= 0 else ():
            told += self._mark(part) if part in MARKS else self._text(part)
        self._role = self._role.strip()
        if told or self._held.strip():  # more than an opening: a message of another format
            self._reset()

    def _reset(self) -> None:
        self._tool = None
        self._told = {False: False, True: False}  # content and thoughts, in messages before, too
        self._begun = False  # some text of this message was told
        self._place, self._role, self._channel, self._held = "role", "assistant", "", ""

    def feed(self, token: int, text: str) -> list[Item]:
        """What is decided with a further token and the text that it added."""
        mark = self.marks.get(token)
        if mark is None:
            return self._text(text)
        return self._text(text.removesuffix(mark)) + self._mark(mark)

    def text(self, text: str) -> list[Item]:
        """The same of text without marks."""
        return self._text(text)

    def finish(self, cut_short: bool = False) -> list[Item]:
        """What was held back, when the answer has ended; of one that was cut short (`cut_short`), a
        call that lacks its end is content."""
        if cut_short and self._tool is not None and not self._held.strip():
            return []
        return self._end()

    def begin(self) -> str:
        """What an answer begins with that is content from its first character on."""
        if self._place == "text":
            return ""
        self._channel = "final"
        self._begin()
        return "<|channel|>final<|message|>"

    def _mark(self, mark: str) -> list[Item]:
        out: list[Item] = []
        in_header = self._place != "text"
        if mark == "<|start|>" or mark in _ENDS:
            out = self._end()
            self._role = "" if mark == "<|start|>" else "assistant"
        elif mark == "<|channel|>":
            if not in_header:
                out = self._end()
            self._channel, self._place = "", "channel"
        elif in_header and mark == "<|constrain|>":
            self._place = "type"
        elif in_header and mark == "<|message|>":
            self._begin()
        return out

    def _text(self, text: str) -> list[Item]:
        if self._place == "role":
            self._role += text
            known = "assistant".startswith(self._role) or _ROLE.fullmatch(self._role)
            if known or not self._role.startswith("assistant"):
                return []
            text, self._role = self._role.removeprefix("assistant"), "assistant"
            self._begin()
        if self._place == "channel":
            self._channel += text
        if self._place != "text":
            return []
        if self._tool is None:
            return self._say(text)
        self._held += text
        begun = self._held.strip()
        if begun and not begun.startswith("{"):
            self._tool = None
            return self._say(self._held)
        return []

    def _say(self, text: str) -> list[Item]:
        if not text:
            return []
        if self._told[self._thinks] and not self._begun:
            text = "\n\n" + text
        self._begun = self._told[self._thinks] = True
        return [Reasoning(text) if self._thinks else text]

    def _begin(self) -> None:
        channel = self._channel.split()
        self._thinks = channel[:1] == ["analysis"]
        self._tool = self._called()
        self._held, self._begun, self._place = "", False, "text"

    def _called(self) -> str | None:
        """Of the tools whose names stand behind to= the one with the longest."""
        found = ""
        for header in (self._role, self._channel):
            match = re.search(r"(?:^|\s)to=(.*)", header, re.DOTALL)
            to = match.group(1) if match else ""
            for whole in (to, to.removeprefix("functions.")):
                for name in self._names:
                    is_it = whole == name or re.match(r"\s", whole[len(name) :])
                    if whole.startswith(name) and is_it:
                        found = max(found, name, key=len)
        return found or None

    def _end(self) -> list[Item]:
        """Of the message, if there is one."""
        out: list[Item] = []
        if self._tool is not None:
            name, held = self._tool, self._held.strip()
            self._tool = None
            try:
                value, end = _JSON.raw_decode(held) if held else ({}, 0)
                out = [ToolCall(name, value)]
                self._thinks = False  # what follows is said
                out += self._say(held[end:].lstrip())
            except json.JSONDecodeError:
                out = self._say(self._held)
        self._place, self._role, self._channel, self._held = "role", "assistant", "", ""
        return out
