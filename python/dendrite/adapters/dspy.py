"""DSPy programs on Dendrite: an engine, and its async twin, for `dspy.LM`.

    pip install ".[dspy]"  # in a clone of Dendrite

    import dspy
    from dendrite.adapters.dspy import lm
    dspy.configure(lm=lm("models/my-model", temperature=0.7))
    print(dspy.Predict("question -> answer")(question="...").answer)

`lm` makes `dspy.LM("dendrite/...", engine=DendriteEngine(...), async_engine=...)`; it takes a
loaded `dendrite.Engine`, too, for a GPU or other options. What begins like an earlier prompt or
chat (instructions, demonstrations, a trajectory that grows) is not computed again. Calls from
several threads, as `dspy.Evaluate` and `dspy.Parallel` make them, share their steps. With
`ChatAdapter(use_native_function_calling=True)` tools go through the model's own chat template, and
a call that the model begins is of one of them, with arguments of its schema. With
`dspy.JSONAdapter` answers are held to the types of a signature's output fields; where one of these
is a mapping of anything, as in `dspy.ReAct`, that asks for JSON without any fields, and
`DendriteJSONAdapter` takes its place. Programs are saved
with the model's path; loading them needs `allow_unsafe_lm_state=True`, as with every engine of
one's own.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from typing import Any

import dspy
from dspy.lm15 import (
    Adaptation,
    Config,
    ContextLengthError,
    DataPart,
    FunctionTool,
    InvalidRequestError,
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    TextPart,
    ThinkingPart,
    ToolCallDelta,
    ToolCallPart,
    ToolResultPart,
    UnsupportedFeatureError,
    Usage,
)

from dendrite import Engine, Error
from dendrite._chat import Answer, Chat, ToolCall, ToolChoice, response_constraint
from dendrite.adapters._dspy_schema import outputs_schema

#: Sampling parameters that go through `Config.extensions`.
EXTENSIONS = ("min_p", "repetition_penalty", "logit_bias", "ignore_eos")
#: Fields of `Config` without meaning or means here; a response says that they were dropped.
DROPPED = (
    *("seed", "frequency_penalty", "presence_penalty", "reasoning"),
    *("service_tier", "user_id", "store"),
)

_loaded: weakref.WeakValueDictionary[str, Engine] = weakref.WeakValueDictionary()
_loading = threading.Lock()


def _load(model: str, **options: Any) -> Engine:
    """The model, which all in this process share that ask for it with the same options."""
    key = json.dumps([model, options], sort_keys=True)
    with _loading:
        engine = _loaded.get(key)
        if engine is None or engine.closed:
            engine = _loaded[key] = Engine(model, **options)
        return engine


def lm(
    model: str | os.PathLike[str] | Engine, *, seed: int = 0, keep: int = 16, **options: Any
) -> dspy.LM:
    """A `dspy.LM` on Dendrite. `options` are those of `dspy.LM`: temperature, max_tokens, cache.

    It is named by the model's path, so that DSPy's cache does not take one model for another.
    """
    engine = DendriteEngine(model, seed=seed, keep=keep)
    name = "dendrite/" + engine.engine.info.model_path.lstrip("/")
    return dspy.LM(name, engine=engine, async_engine=AsyncDendriteEngine(engine), **options)


class DendriteJSONAdapter(dspy.JSONAdapter):
    """`dspy.JSONAdapter` whose answers have every output field of the signature, whatever its type.

    DSPy asks for JSON of no schema where a field is a mapping of anything, since structured outputs
    of providers know no such thing; an answer may then lack fields, and `dspy.ReAct`, whose
    `next_tool_args` are such a mapping, fails. A grammar knows it: here the schema goes along.

    max_length: the most characters of a text whose type says nothing of it. With it numbers have at
        most 15 digits before the point and six behind it, too, and lists and mappings at most
        `max_items` entries and, where they may hold anything, two levels of others: every answer
        ends, whatever the model writes. None: an answer may go on until `max_tokens` cuts it short.
    max_items: see there.
    options: of `dspy.JSONAdapter`.
    """

    def __init__(
        self, *, max_length: int | None = None, max_items: int = 8, **options: Any
    ) -> None:
        super().__init__(**options)
        self.max_length = max_length
        self.max_items = max_items

    def _prepare_response_format(
        self, lm: dspy.BaseLM, lm_kwargs: dict[str, Any], signature: type[dspy.Signature]
    ) -> None:
        """DSPy's hook. (Calls of tools are no part of the JSON where they go their own way.)"""
        fields = {
            name: field.annotation
            for name, field in signature.output_fields.items()
            if not (self.use_native_function_calling and field.annotation is dspy.ToolCalls)
        }
        schema = outputs_schema(fields, self.max_length, self.max_items)
        lm_kwargs["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "outputs", "schema": schema},
        }


class DendriteEngine:
    """What `dspy.LM` takes as `engine`. Safe to use from several threads.

    model: a model folder or an id in the local Hugging Face cache, or a loaded Engine. Engines of
        one folder with the same options share a loaded model.
    seed: of all draws.
    keep: how many chats stay in memory to go on from.
    options: of Engine (device, dtype, kv_tokens, ...); not with a loaded one.
    """

    supports_function_calling = True
    supports_reasoning = False
    supports_response_schema = True
    supported_params = frozenset(
        {"temperature", "max_tokens", "top_p", "top_k", "stop", "stream"}
        | {"tools", "tool_choice", "response_format"}
    )

    def __init__(
        self,
        model: str | os.PathLike[str] | Engine,
        *,
        seed: int = 0,
        keep: int = 16,
        **options: Any,
    ) -> None:
        if not isinstance(model, Engine):
            self._state = {"model": os.fspath(model), **options}
            self.engine = _load(**self._state)
        elif options:
            raise Error(f"DendriteEngine: got {sorted(options)} and an Engine, which is loaded")
        else:
            self.engine = model
            self._state = {"model": model.info.model_path, "device": model.info.device}
        self._state |= {"seed": seed, "keep": keep}
        self.session = self.engine.session(seed=seed)
        self.chat = Chat(self.session, keep=keep)

    def complete(self, request: Request) -> Response:
        """The whole answer."""
        with _translated():
            call = _Call(self, request)
            return call.response(
                self.chat.answer(call.messages, call.tools, call.choice, **call.params)
            )

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer as it is generated, as DSPy's stream events."""
        with _translated():
            call = _Call(self, request)
            yield call.start()
            with closing(
                self.chat.stream(call.messages, call.tools, call.choice, **call.params)
            ) as items:
                for item in items:
                    yield from call.events(item)

    def close(self) -> None:
        """Frees what was kept of chats. The model stays loaded as long as somebody uses it."""
        self.session.close()

    def dump_state(self) -> dict[str, Any]:
        """What a saved program has of it: the model's path and how to load it."""
        return dict(self._state)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> DendriteEngine:
        """The engine that `dump_state` described."""
        return cls(**state)

    def __deepcopy__(self, memo: dict[int, Any]) -> DendriteEngine:
        return self


class AsyncDendriteEngine:
    """What `dspy.LM` takes as `async_engine`: the async twin of a DendriteEngine, on its session.

    model: what DendriteEngine takes, with its options, or one of those.
    """

    def __init__(
        self, model: str | os.PathLike[str] | Engine | DendriteEngine, **options: Any
    ) -> None:
        if not isinstance(model, DendriteEngine):
            model = DendriteEngine(model, **options)
        self._sync = model

    async def complete(self, request: Request) -> Response:
        """The whole answer; cancelling the task ends the generation."""
        chat = self._sync.chat
        with _translated():
            call = _Call(self._sync, request)
            return call.response(
                await chat.answer_async(call.messages, call.tools, call.choice, **call.params)
            )

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The answer as it is generated, as DSPy's stream events."""
        chat = self._sync.chat
        with _translated():
            call = _Call(self._sync, request)
            yield call.start()
            stream = chat.stream_async(call.messages, call.tools, call.choice, **call.params)
            async with aclosing(stream) as items:
                async for item in items:
                    for event in call.events(item):
                        yield event

    async def aclose(self) -> None:
        """See DendriteEngine.close."""
        self._sync.close()

    def dump_state(self) -> dict[str, Any]:
        """See DendriteEngine.dump_state."""
        return self._sync.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncDendriteEngine:
        """See DendriteEngine.load_state."""
        return cls(DendriteEngine.load_state(state))

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncDendriteEngine:
        return self


@contextmanager
def _translated() -> Iterator[None]:
    """Errors in DSPy's words."""
    try:
        yield
    except Error as error:
        raise InvalidRequestError(str(error)) from error


class _Call:
    """A request in Dendrite's words, and what comes of it in DSPy's."""

    def __init__(self, engine: DendriteEngine, request: Request) -> None:
        self._model = request.model
        self.messages = _messages(request)
        self.tools = _tools(request)
        self.choice = _choice(request)
        self._adaptations: list[Adaptation] = []
        prompt = engine.chat.prompt(self.messages, self.tools)
        tokens = len(engine.engine.encode(prompt, add_special=False))
        longest = engine.engine.info.max_positions
        if tokens >= longest:  # (programs mend this by themselves)
            raise ContextLengthError(
                f"the prompt has {tokens} tokens; expected less than {longest}, the longest context"
            )
        self.params = self._params(request.config, longest - tokens)
        self._parts = 0  # of the answer that have begun

    def _params(self, config: Config, room: int) -> dict[str, Any]:
        if config.logprobs is not None:
            raise UnsupportedFeatureError(
                "the adapter reports no log-probabilities", feature="config.logprobs"
            )
        extensions = dict(config.extensions or {})
        if unknown := sorted(extensions.keys() - set(EXTENSIONS)):
            raise UnsupportedFeatureError(
                f"got {unknown}; expected {', '.join(EXTENSIONS)}", feature="config.extensions"
            )
        if bias := extensions.get("logit_bias"):
            extensions["logit_bias"] = {int(token): value for token, value in bias.items()}
        for name in DROPPED:
            if (asked := getattr(config, name)) is not None:
                self._drop(f"config.{name}", asked)
        known = {
            "max_tokens": min(config.max_tokens or room, room),
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "stop": config.stop,
            "constraint": response_constraint(config.response_format),
        }
        return {**known, **extensions}

    def _drop(self, field: str, asked: Any) -> None:
        asked = asked if isinstance(asked, (str, int, float, bool)) else repr(asked)
        self._adaptations.append(
            Adaptation(field, "dropped", "Dendrite has nothing of the kind", asked=asked)
        )

    def response(self, answer: Answer) -> Response:
        parts: list[TextPart | ToolCallPart] = [TextPart(answer.text)] if answer.text else []
        parts += [ToolCallPart(call.id, call.name, call.arguments) for call in answer.calls]
        return Response(
            id=None,
            model=self._model,
            message=Message.assistant(parts or [TextPart("")]),
            finish_reason=_finish_reason(answer),
            usage=_usage(answer),
            adaptations=tuple(self._adaptations),
        )

    def start(self) -> StreamStartEvent:
        return StreamStartEvent(model=self._model, adaptations=tuple(self._adaptations))

    def events(self, item: str | ToolCall | Answer) -> Iterator[Any]:
        """Text is part 0, each call a part of its own."""
        if isinstance(item, str):
            self._parts = max(self._parts, 1)
            yield StreamDeltaEvent(TextDelta(item, part_index=0))
        elif isinstance(item, ToolCall):
            self._parts += 1
            yield StreamDeltaEvent(
                ToolCallDelta(item.arguments_json(), self._parts, item.id, item.name)
            )
        else:
            if self._parts == 0:
                yield StreamDeltaEvent(TextDelta("", part_index=0))
            yield StreamEndEvent(_finish_reason(item), _usage(item))


def _finish_reason(answer: Answer) -> str:
    return "tool_call" if answer.finish_reason == "tool_calls" else answer.finish_reason


def _usage(answer: Answer) -> Usage:
    return Usage(
        input_tokens=answer.prompt_tokens,
        output_tokens=answer.tokens,
        cache_read_tokens=answer.cached_tokens,
    )


def _tools(request: Request) -> list[dict[str, Any]]:
    """The tools that the model may call, in OpenAI's form."""
    choice = request.config.tool_choice
    if choice is not None and choice.mode == "none":
        return []
    tools = []
    for tool in request.tools:
        if not isinstance(tool, FunctionTool):
            raise UnsupportedFeatureError(
                f"{tool.name!r} is a tool of a provider's own; expected functions", feature="tools"
            )
        if choice is None or not choice.allowed or tool.name in choice.allowed:
            function = {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters,
            }
            tools.append({"type": "function", "function": function})
    return tools


def _choice(request: Request) -> ToolChoice:
    """How the tools may be used."""
    choice = request.config.tool_choice
    if choice is None:
        return ToolChoice()
    return ToolChoice(required=choice.mode == "required", parallel=choice.parallel is not False)


def _messages(request: Request) -> list[dict[str, Any]]:
    """Instructions and messages in OpenAI's form."""
    messages: list[dict[str, Any]] = []
    if request.system is not None:
        system = request.system if isinstance(request.system, str) else _text(request.system)
        messages.append({"role": "system", "content": system})
    for message in request.messages:
        if message.role == "tool":
            messages.extend(
                {
                    "role": "tool",
                    "tool_call_id": result.id,
                    "name": result.name or "",
                    "content": _text(result.content),
                }
                for result in message.parts_of(ToolResultPart)
            )
        elif message.role == "assistant":
            messages.append(_assistant(message))
        else:
            role = "system" if message.role == "developer" else message.role
            messages.append({"role": role, "content": _text(message.parts)})
    return messages


def _assistant(message: Message) -> dict[str, Any]:
    apart = (ToolCallPart, ThinkingPart)
    out: dict[str, Any] = {
        "role": "assistant",
        "content": _text([part for part in message.parts if not isinstance(part, apart)]),
    }
    if thoughts := message.parts_of(ThinkingPart):
        out["reasoning_content"] = "\n".join(part.text for part in thoughts)
    if calls := message.parts_of(ToolCallPart):
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.input},
            }
            for call in calls
        ]
    return out


def _text(parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, DataPart):
            texts.append(json.dumps(part.value, ensure_ascii=False))
        else:
            raise UnsupportedFeatureError(
                f"got a part of type {part.type!r}; expected text", feature="messages"
            )
    return "\n".join(texts)
