"""Chats of a session: conversations to requests, and generations to replies."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dendrite import _core, _doors
from dendrite._call_grammar import ToolChoice, added_tokens
from dendrite._chat import (
    CUT_SHORT,
    AnswerRules,
    BranchCache,
    call_marks_of,
    read_harmony,
    with_marks,
)
from dendrite._core import ChosenToken, Error, Finish, Generation
from dendrite._generate import Request, requests_of
from dendrite._harmony import HarmonyParser, Reasoning
from dendrite._params import DecodeParams
from dendrite._types import Message
from dendrite.tools import ToolCall, ToolCallParser, function_of

if TYPE_CHECKING:
    from dendrite._engine import Engine
    from dendrite._session import Session

_LABEL = "thought"  # behind Gemma's opening tag
_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>" + _LABEL, "<channel|>"),
)
"""What models write around what they think before they answer."""


@dataclasses.dataclass(frozen=True)
class ChatReply:
    """What a model replied in a chat. A value: it needs no session, and may be pickled."""

    text: str
    """For who asked: without reasoning and calls."""
    tool_calls: tuple[ToolCall, ...]
    """The calls of known tools, as objects; what looks like one and is none is text."""
    reasoning: str
    """What the model thought before, where it is one that writes it apart; else empty."""
    prompt_tokens: int
    """Of the rendered conversation."""
    generation: Generation
    """All of it: ids, text as it was generated, finish, logprobs."""

    @property
    def ids(self) -> list[int]:
        """All generated tokens."""
        return self.generation.ids

    @property
    def logprobs(self) -> list[ChosenToken]:
        """One a token, where they were asked for."""
        return self.generation.logprobs

    @property
    def finish(self) -> Finish:
        """Why it ended."""
        return self.generation.finish

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words: "tool_calls", "stop", or "length" where it was cut short."""
        if self.tool_calls:
            return "tool_calls"
        return "length" if self.finish in CUT_SHORT else "stop"

    def message(self) -> dict[str, Any]:
        """The message that goes on with the chat: append it, then results of tools or a question.

        Each call's id is that of its result's "tool_call_id".
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json()},
                }
                for call in self.tool_calls
            ]
        return message

    def asdict(self) -> dict[str, Any]:
        """All fields, in their order; records in them as dictionaries, too."""
        return {
            "text": self.text,
            "tool_calls": [dataclasses.asdict(call) for call in self.tool_calls],
            "reasoning": self.reasoning,
            "prompt_tokens": self.prompt_tokens,
            "generation": self.generation.asdict(),
        }


class ChatState:
    """What a session keeps for its chats."""

    def __init__(self, engine: Engine) -> None:
        self.rules = AnswerRules(engine)
        self.kept = BranchCache()


class Conversation(NamedTuple):
    """How to read the generations of one."""

    prompt_tokens: int
    tags: tuple[str, str] | None  # of what is thought
    thinks: bool  # its prompt ends within such tags
    tools: Sequence[Message]
    engine: Engine
    harmony: HarmonyParser | None = None  # reads all, where the model writes it

    def reply(self, generation: Generation) -> ChatReply:
        """The reply that it is."""
        if self.harmony is not None:
            return self._harmony_reply(generation, copy.deepcopy(self.harmony))
        reasoning, text = self._split(generation)
        calls: list[ToolCall] = []
        if self.tools:
            parser = ToolCallParser(self.tools)
            items = parser.feed(text) + parser.finish(generation.finish in CUT_SHORT)
            text = "".join(item for item in items if isinstance(item, str))
            calls = [item for item in items if isinstance(item, ToolCall)]
        return ChatReply(text, tuple(calls), reasoning, self.prompt_tokens, generation)

    def _harmony_reply(self, generation: Generation, parser: HarmonyParser) -> ChatReply:
        items = read_harmony(self.engine, generation, parser)
        items += parser.finish(generation.finish in CUT_SHORT)
        return ChatReply(
            "".join(item for item in items if isinstance(item, str)),
            tuple(item for item in items if isinstance(item, ToolCall)),
            "".join(item.text for item in items if isinstance(item, Reasoning)),
            self.prompt_tokens,
            generation,
        )

    def _split(self, generation: Generation) -> tuple[str, str]:
        """What was thought, and what was said after it."""
        marks = call_marks_of(self.engine) if self.tools else {}
        if self.tags is not None:
            known = added_tokens(self.engine.info.model_path)
            tags = (*self.tags, self.tags[0].removesuffix(_LABEL))
            marks |= {known[tag]: tag for tag in tags if tag in known}
        text = with_marks(self.engine, generation, marks)
        if self.tags is None:
            return "", text
        opening, closing = self.tags
        begun = text.lstrip().startswith(opening)
        if not begun and not self.thinks:
            return "", text
        if begun:
            text = text.lstrip()[len(opening) :]
        reasoning, _, rest = text.partition(closing)
        return reasoning.strip(), rest.lstrip()


_MESSAGES = "messages with role and content, or a list of such lists"


def chat_requests(
    session: Session,
    messages: Any,
    tools: Sequence[Message] | None,
    tool_choice: str | ToolChoice,
    template: Mapping[str, Any] | None,
    params: DecodeParams | None,
    fields: Mapping[str, Any],
    *,
    n: int | None,
    at_once: int | None,
    seeds: Sequence[int | None] | None,
    echo: bool,
    echo_top: int,
) -> tuple[list[Request], list[Conversation], bool]:
    """The requests of a call of chat with how to read their answers; whether it was one chat."""
    engine, state = session.engine, session._chat_state
    single = _is_one(messages)
    chats: list[Sequence[Message]] = [messages] if single else list(messages)
    for chat in chats:
        for message in _doors.items("messages", chat, _MESSAGES):
            if not isinstance(message, Mapping):
                raise _doors.wrong("messages", message, _MESSAGES)
    if template is not None and not isinstance(template, Mapping):
        raise _doors.wrong("template", template, "a mapping or None")
    offered, choice = _offered(tools, tool_choice)
    if params is not None and not isinstance(params, DecodeParams):
        raise _doors.wrong("params", params, "a DecodeParams or None")
    wanted = fields.get("constraint", params.constraint if params else None)
    rules = state.rules
    prompts, thinking, parsers = [], [], []
    constraint = wanted
    tags = reasoning_tags(engine.info.model_path)
    for index, chat in enumerate(chats):
        text: str
        try:
            text = rules.prompt(chat, offered, template)
        except (Error, ValueError) as error:
            raise Error(f"chat: conversation {index}: {error}") from error
        text, constraint = rules.of(text, offered, choice, wanted)
        thinking.append(tags is not None and text.rfind(tags[0]) > text.rfind(tags[1]))
        parsers.append(rules.parser(offered, text))
        prompts.append(engine.encode(text, add_special=False))
    if constraint is not wanted:
        fields = {**fields, "constraint": constraint}
    own = params or DecodeParams()
    stops = rules.stops(
        fields.get("stop_tokens", own.stop_tokens), fields.get("ignore_eos", own.ignore_eos)
    )
    if stops:
        fields = {**fields, "stop_tokens": stops}
    requests, _ = requests_of(
        session,
        prompts,
        params,
        fields,
        n=n,
        at_once=at_once,
        seeds=seeds,
        echo=echo,
        echo_top=echo_top,
    )
    conversations = [
        Conversation(len(prompt), tags, thinks, offered, engine, parser)
        for prompt, thinks, parser in zip(prompts, thinking, parsers, strict=True)
    ]
    return requests, conversations, single


def _is_one(messages: Any) -> bool:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        expected = 'a list of {"role": ..., "content": ...}, or a list of such lists'
        if isinstance(messages, list):
            raise TypeError(f"messages: got an empty list; expected {expected}")
        raise _doors.wrong("messages", messages, expected)
    return isinstance(messages[0], Mapping)


def _offered(
    tools: Sequence[Message] | None, choice: str | ToolChoice
) -> tuple[list[Message], ToolChoice]:
    """The tools that the model is shown, in OpenAI's form, and whether it has to call one."""
    wanted = "a sequence of mappings, OpenAI's tools"
    functions = []
    for tool in [] if tools is None else _doors.items("tools", tools, wanted):
        if not isinstance(tool, Mapping):
            raise _doors.wrong("tools", tool, wanted)
        functions.append(function_of(tool))
    if not isinstance(choice, (str, ToolChoice)):
        raise _doors.wrong("tool_choice", choice, "a str or a ToolChoice")
    for i, function in enumerate(functions):
        if not isinstance(function.get("name"), str):
            raise Error(f"chat: tools[{i}] has no name; expected a function in OpenAI's form")
    if isinstance(choice, str):
        named = [function for function in functions if function["name"] == choice]
        if named:
            functions = named
        elif choice == "none":
            functions = []
        elif choice not in ("auto", "required"):
            names = ", ".join(repr(function["name"]) for function in functions)
            raise Error(
                f"chat: tool_choice is {choice!r}; expected auto, required, none, or the name of a "
                f"tool ({names or 'there is none'})"
            )
        choice = ToolChoice(required=bool(named) or choice == "required", parallel=not named)
    if choice.required and not functions:
        raise Error("chat: a call is required, and there are no tools; expected at least one")
    return [{"type": "function", "function": function} for function in functions], choice


@functools.lru_cache(maxsize=8)
def reasoning_tags(model_path: str) -> tuple[str, str] | None:
    """What the model writes around its thoughts, if its template or its tokens know of any."""
    known = set(added_tokens(model_path))
    names = ("chat_template.jinja", "chat_template.json")
    template = "".join(_core.model_text(model_path, name) or "" for name in names)
    config = json.loads(_core.model_text(model_path, "tokenizer_config.json") or "{}")
    template += json.dumps(config.get("chat_template") or "", ensure_ascii=False)
    return next((tags for tags in _TAGS if tags[1] in known or tags[1] in template), None)
