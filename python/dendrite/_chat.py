"""Chats: messages to a prompt, a prompt to an answer, and chats that go on.

An adapter turns its framework's messages into OpenAI's form and calls a `Chat`, which renders,
generates, splits content from tool calls, and keeps the branches of the last answers.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dendrite._call_grammar import CallGrammar, ToolChoice, added_tokens
from dendrite._constraint import JsonObject, JsonSchema
from dendrite._core import Branch, Error, Finish, Generation, TokenEvent
from dendrite._harmony import (
    HarmonyParser,
    Reasoning,
    ends_of,
    marks_of,
    messages_for,
    tools_for,
    variables_for,
)
from dendrite._logprobs import openai_logprobs
from dendrite._types import Message
from dendrite.tools import MARKS, ToolCall, ToolCallParser, function_of

if TYPE_CHECKING:
    from dendrite._constraint import Constraint
    from dendrite._engine import Engine
    from dendrite._node import Node
    from dendrite._session import Session

__all__ = [
    "Answer",
    "BranchCache",
    "Chat",
    "ToolCall",
    "ToolCallParser",
    "ToolChoice",
    "for_template",
    "response_constraint",
]

CUT_SHORT = (Finish.LENGTH, Finish.STOP_INSIDE, Finish.BUDGET, Finish.DEAD_END)


class BranchCache:
    """Keeps the branches of the last `size` chats, so that a chat that goes on computes only what
    is new.

    `Session.prefill` begins a prompt at the longest prefix of which any live branch holds K and V,
    generated tokens included: so all that it takes is to keep the branch of an answer alive. When
    pages run out, the engine takes those of kept branches before those of running ones. Safe to
    use from several threads.
    """

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: list[tuple[bytes, Node]] = []  # by use, the last one last

    def keep(self, branch: Branch) -> None:
        """Keeps the point at which a branch is; those that it continues are let go for it."""
        tokens = branch.tokens.tobytes()
        with self._lock:
            others = [entry for entry in self._kept if not tokens.startswith(entry[0])]
            if self._size > 0:
                others.append((tokens, branch.node()))
            self._kept = others[-self._size :] if self._size > 0 else []

    def clear(self) -> None:
        """Lets all of them go."""
        with self._lock:
            self._kept = []

    def __len__(self) -> int:
        return len(self._kept)


@dataclass(frozen=True)
class Answer:
    """What a model answered to one prompt, and what that took."""

    text: str  # without the tool calls
    calls: tuple[ToolCall, ...]
    finish: Finish
    prompt_tokens: int
    cached_tokens: int  # of them: not computed, because a branch or a prompt held them
    tokens: int  # generated
    logprobs: dict[str, Any] | None = None  # in OpenAI's form, where they were asked for

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words: "tool_calls", "stop", or "length" where the answer was cut short.

        A stop inside of what a constraint asks for cuts it short, too."""
        if self.calls:
            return "tool_calls"
        return "length" if self.finish in CUT_SHORT else "stop"


def for_template(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """OpenAI's messages as chat templates read them: content in one text, a call's arguments as
    an object. Raises ValueError for content that is no text."""
    return [_for_template(dict(message)) for message in messages]


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    message["content"] = _text_of(message.get("content"))
    if message.get("tool_calls"):
        message["tool_calls"] = [_call_for_template(call) for call in message["tool_calls"]]
    return message


def _text_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    for part in parts:
        # (Calls stand in tool_calls, too.)
        if part.get("type") not in ("text", "tool_use", "tool_call"):
            raise ValueError(f"got content of type {part.get('type')!r}; expected 'text' alone")
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _call_for_template(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(function_of(call))
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "type": "function", "function": function}


def response_constraint(wanted: Any) -> JsonSchema | None:
    """The constraint of a `response_format` in OpenAI's form, None for text. Raises ValueError."""
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return JsonObject()
    schema = wanted.get("json_schema", wanted).get("schema") if kind == "json_schema" else None
    if schema is None:
        raise ValueError(
            f"response_format: got {wanted!r}; expected {{'type': 'text'}}, "
            "{'type': 'json_object'}, or {'type': 'json_schema', 'json_schema': {'schema': ...}}"
        )
    return JsonSchema(schema)


def _without_thoughts(prompt: str) -> str:
    """The prompt of an answer that is constrained from its first token on: one that had to think
    before is told that it has thought, in the way of templates that know `enable_thinking`."""
    if prompt.rfind("<think>") <= prompt.rfind("</think>"):
        return prompt
    return prompt.rstrip() + "\n\n</think>\n\n"


def read_harmony(
    engine: Engine, generation: Generation, parser: HarmonyParser
) -> list[str | Reasoning | ToolCall]:
    """What a parser makes of a whole answer, whose text may leave the marks out."""
    items: list[str | Reasoning | ToolCall] = []
    text, ids = generation.text, generation.ids
    told, begin = 0, 0
    for i, token in enumerate(ids):
        if token not in parser.marks:
            continue
        if i > begin:
            before = engine.decode(ids[:i], skip_special=True)
            until = max(told, len(os.path.commonprefix([before, text])))
            items += parser.text(text[told:until])
            told = until
        own = engine.decode([token], skip_special=True)
        own = own if text.startswith(own, told) else ""
        items += parser.feed(token, own)
        told, begin = told + len(own), i + 1
    return items + parser.text(text[told:])


def call_marks_of(engine: Engine) -> dict[int, str]:
    """The tokens of a model that stand in calls."""
    known = added_tokens(engine.info.model_path)
    return {token: mark for mark, token in known.items() if mark in MARKS}


def with_marks(engine: Engine, generation: Generation, marks: Mapping[int, str]) -> str:
    """The text of a generation, with marks where their tokens are that were no text."""
    out: list[str] = []
    text, ids, told = generation.text, generation.ids, 0
    for i, token in enumerate(ids):
        if token not in marks:
            continue
        before = engine.decode(ids[:i], skip_special=True)
        until = max(told, len(os.path.commonprefix([before, text])))
        out.append(text[told:until])
        told = until
        if not text.startswith(marks[token], told):
            out.append(marks[token])
    return "".join(out) + text[told:]


class AnswerRules:
    """What a model's prompts and answers must be. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._grammar: CallGrammar | None = None
        self.harmony = marks_of(engine)
        """The marks of a model that writes Harmony."""
        self.marks = call_marks_of(engine)

    def prompt(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message] = (),
        template: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model's chat template makes of messages and tools."""
        made, variables = for_template(messages), dict(template or {})
        if self.harmony is not None:
            made, tools = messages_for(made), tools_for(tools)
            variables = variables_for(variables)
        text: str = self._engine.render_chat(made, tools=list(tools) or None, **variables)
        return text

    def of(
        self,
        prompt: str,
        tools: Sequence[Message],
        choice: ToolChoice,
        constraint: Constraint | None,
    ) -> tuple[str, Constraint | None]:
        """The prompt as it is to be then, and the constraint of its answer.

        Where there are tools, calls are held to their schemas; `constraint` then says what an
        answer must be that calls none, and has to be a JsonSchema.
        """
        if self.harmony is None and (constraint is not None or (tools and choice.required)):
            prompt = _without_thoughts(prompt)
        if not tools and (constraint is None or self.harmony is None):
            return prompt, constraint
        if not tools and not isinstance(constraint, JsonSchema):
            return prompt + HarmonyParser((), {}, prompt).begin(), constraint
        if constraint is not None and not isinstance(constraint, JsonSchema):
            raise Error(f"got tools and {constraint!r}; expected a JsonSchema beside tools")
        if self._grammar is None:
            self._grammar = CallGrammar(self._engine)
        if not tools and constraint is not None:
            return prompt, self._grammar.final_answer(constraint)
        return prompt, self._grammar.constraint(tools, choice, constraint)

    def stops(self, given: Sequence[int], ignore_eos: bool) -> list[int]:
        """The tokens that end an answer, with the ends of Harmony that the model's files lack."""
        ends = (
            []
            if self.harmony is None or ignore_eos
            else ends_of(self.harmony, self._engine.info.eos)
        )
        return [*given, *ends]

    def parser(self, tools: Sequence[Message], prompt: str) -> HarmonyParser | None:
        """What reads an answer in Harmony."""
        return None if self.harmony is None else HarmonyParser(tools, self.harmony, prompt)


class Chat:
    """Answers chats in one session. Safe to use from several threads and tasks.

    `messages` and `tools` are OpenAI's; `params` are the fields of `dendrite.DecodeParams`. Where
    there are tools, calls are held to their schemas, see CallGrammar; a `constraint` then says what
    an answer must be that calls none, and has to be a JsonSchema. Streams give content as `str`,
    each `ToolCall` when it is complete, and an `Answer` at the end; closing one early ends the
    generation.
    """

    def __init__(self, session: Session, *, keep: int = 16) -> None:
        self._session = session
        self._cache = BranchCache(keep)
        self.rules = AnswerRules(session.engine)

    def prompt(self, messages: Iterable[Message], tools: Sequence[Message] = ()) -> str:
        """The text that the model's chat template makes of messages and tools."""
        return self.rules.prompt(messages, tools)

    def _request(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message],
        choice: ToolChoice,
        params: dict[str, Any],
    ) -> tuple[str, dict[str, Any], _Reply]:
        """The prompt, the parameters with what the answer must be, and what reads it."""
        prompt = self.prompt(messages, tools)
        wanted = params.get("constraint")
        prompt, constraint = self.rules.of(prompt, tools, choice, wanted)
        if constraint is not wanted:
            params = {**params, "constraint": constraint}
        stops = self.rules.stops(params.get("stop_tokens", ()), params.get("ignore_eos", False))
        if stops:
            params = {**params, "stop_tokens": stops}
        return prompt, params, _Reply(tools, self.rules.parser(tools, prompt), self.rules.marks)

    def answer(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message] = (),
        choice: ToolChoice = ToolChoice(),
        **params: Any,
    ) -> Answer:
        """The whole answer."""
        prompt, params, reply = self._request(messages, tools, choice, params)
        with self._session.prefill(prompt, add_special=False) as branch:
            reply.begin(branch)
            generation = self._session.decode(branch, **params)
            reply.add_all(self._session.engine, generation)
            return self._end(reply, branch, generation)

    async def answer_async(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message] = (),
        choice: ToolChoice = ToolChoice(),
        **params: Any,
    ) -> Answer:
        """The whole answer; it occupies no thread of the event loop's."""
        session = self._session.aio
        prompt, params, reply = self._request(messages, tools, choice, params)
        with await session.prefill(prompt, add_special=False) as branch:
            reply.begin(branch)
            generation = await session.decode(branch, **params)
            reply.add_all(self._session.engine, generation)
            return self._end(reply, branch, generation)

    def stream(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message] = (),
        choice: ToolChoice = ToolChoice(),
        **params: Any,
    ) -> Generator[str | ToolCall | Answer]:
        """The answer as it is generated."""
        prompt, params, reply = self._request(messages, tools, choice, params)
        with self._session.prefill(prompt, add_special=False) as branch:
            reply.begin(branch)
            out: list[Generation] = []

            def steps() -> Generator[list[TokenEvent], None, None]:
                out.extend((yield from self._session.stream(branch, **params)))

            with closing(steps()) as told:
                for events in told:
                    yield from reply.add(events)
            yield from reply.rest(branch)
            yield self._end(reply, branch, out[0])

    async def stream_async(
        self,
        messages: Iterable[Message],
        tools: Sequence[Message] = (),
        choice: ToolChoice = ToolChoice(),
        **params: Any,
    ) -> AsyncGenerator[str | ToolCall | Answer]:
        """The answer as it is generated; it occupies no thread of the event loop's."""
        session = self._session.aio
        prompt, params, reply = self._request(messages, tools, choice, params)
        with await session.prefill(prompt, add_special=False) as branch:
            reply.begin(branch)
            async with aclosing(session.stream(branch, **params)) as steps:
                async for events in steps:
                    for item in reply.add(events):
                        yield item
            for item in reply.rest(branch):
                yield item
            yield self._end(reply, branch, steps.generations[0])

    def _end(self, reply: _Reply, branch: Branch, generation: Generation) -> Answer:
        reply.rest(branch)
        self._cache.keep(branch)
        before = int(branch.tokens[branch.prompt_length - 1])
        return reply.end(branch, openai_logprobs(self._session.engine, before, generation))


class _Reply:
    """One answer while it comes. What is thought in Harmony is left out."""

    def __init__(
        self, tools: Sequence[Message], harmony: HarmonyParser | None, marks: Mapping[int, str]
    ) -> None:
        self._marks = marks if tools else {}
        self._parser = ToolCallParser(tools) if tools and harmony is None else None
        self._harmony = harmony
        self._text: list[str] = []
        self._calls: list[ToolCall] = []

    def begin(self, branch: Branch) -> None:
        self._cached = max(0, len(branch) - branch.stats().tokens_computed)

    def add(self, events: Sequence[TokenEvent]) -> list[str | ToolCall]:
        if self._harmony is not None:
            told = [self._harmony.feed(event.token, event.text) for event in events]
            return self._note([item for items in told for item in items])
        return self._add_text("".join(map(self._text_of, events)))

    def _text_of(self, event: TokenEvent) -> str:
        mark = self._marks.get(event.token, "")
        return event.text + ("" if event.text.endswith(mark) else mark)

    def add_all(self, engine: Engine, generation: Generation) -> None:
        if self._harmony is not None:
            self._note(read_harmony(engine, generation, self._harmony))
        else:
            self._add_text(with_marks(engine, generation, self._marks))

    def _add_text(self, text: str) -> list[str | ToolCall]:
        if self._parser is None:
            return self._note([text] if text else [])
        return self._note(self._parser.feed(text))

    def rest(self, branch: Branch) -> list[str | ToolCall]:
        parser = self._harmony or self._parser
        return [] if parser is None else self._note(parser.finish(branch.finish in CUT_SHORT))

    def _note(self, items: Sequence[str | Reasoning | ToolCall]) -> list[str | ToolCall]:
        told = [item for item in items if not isinstance(item, Reasoning)]
        self._text += [item for item in told if isinstance(item, str)]
        self._calls += [item for item in told if isinstance(item, ToolCall)]
        return told

    def end(self, branch: Branch, logprobs: dict[str, Any] | None) -> Answer:
        return Answer(
            text="".join(self._text),
            calls=tuple(self._calls),
            finish=branch.finish,
            prompt_tokens=branch.prompt_length,
            cached_tokens=self._cached,
            tokens=len(branch) - branch.prompt_length,
            logprobs=logprobs,
        )
