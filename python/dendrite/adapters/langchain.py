"""A chat model for LangChain and LangGraph.

    pip install ".[langchain]"  # in a clone of Dendrite

    from dendrite.adapters.langchain import ChatDendrite

    model = ChatDendrite(model="path/to/model", temperature=0.7)
    print(model.invoke("Tell me of trees.").content)
    message = model.bind_tools([get_weather]).invoke("Will it rain in Rome?")  # .tool_calls

It streams, counts tokens, and calls tools in the format of the model's family; its async methods
share the engine's steps and occupy no thread of the event loop's. Chats that go on, and agents that
come back from a tool, compute only what is new (``cache_read`` in ``usage_metadata`` tells).

Calls and structured answers are valid by construction: a call that the model begins is of a tool
that was offered, with arguments of its schema; ``tool_choice="any"``, or a tool's name, makes it
call one; ``with_structured_output`` and ``response_format`` hold the answer to a schema. Only
``max_tokens`` can cut one short.

``logprobs=True`` puts the log-probs of the generated tokens, the end token included, into
``response_metadata["logprobs"]``, in OpenAI's form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import Any, Literal, Self, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import Field, PrivateAttr, model_validator

from dendrite import Engine
from dendrite._call_grammar import ToolChoice, closed
from dendrite._chat import Answer, Chat, ToolCall, response_constraint
from dendrite.tools import function_of

__all__ = ["ChatDendrite"]

Tool: TypeAlias = Mapping[str, Any] | type | Callable[..., Any] | BaseTool
Choice: TypeAlias = str | bool | Mapping[str, Any] | None


class ChatDendrite(BaseChatModel):
    """A model that runs in this process. Give it a folder, or an engine that is already loaded.

    Fields that are None are as the model's generation_config.json says. A call may set any field of
    `dendrite.DecodeParams` for itself: ``model.invoke(messages, temperature=0, top_p=0.9)``.
    What is no field is an error: another device, say, is ``engine=Engine(path, device="cuda")``.
    """

    model: str = ""
    """A folder in Hugging Face layout; not needed with `engine`."""
    engine: Engine | None = Field(default=None, exclude=True, repr=False)
    """One that several chat models may share. (A field, not a private attribute, so that
    `configurable_fields` passes it on instead of loading the model again.)"""
    temperature: float | None = None
    """0: the likeliest token."""
    max_tokens: int = 256
    """New tokens an answer."""
    top_k: int | None = None
    """Keeps the k likeliest tokens; 0: all."""
    top_p: float | None = None
    """Keeps the likeliest tokens up to this probability."""
    min_p: float | None = None
    """Keeps p >= min_p * largest p."""
    stop: list[str] | None = None
    """Ends an answer before the first of these texts."""
    logprobs: bool | None = None
    """True: messages have the log-probs of their generated tokens, the end token included, as
    ``response_metadata["logprobs"]`` in OpenAI's form; of a stream the last chunk has them."""
    top_logprobs: int | None = None
    """The same, and the likeliest so many at each place."""
    seed: int | None = None
    """What is drawn depends on it and on the messages; the same messages again draw afresh. None:
    one that nobody had."""
    chats_kept: int = 16
    """The last so many chats keep their branches, for their next message."""
    streaming: bool = False
    """LangChain's: invoke goes by the stream, so that callbacks hear of each token."""
    timeout: float | None = None
    """LangChain's, of models behind a network. This one is in the process: nothing changes."""
    max_retries: int | None = None
    """The same."""
    api_key: Any = Field(default=None, exclude=True, repr=False)
    """The same."""

    _chat: Chat = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            names = set(cls.model_fields) | {
                field.alias for field in cls.model_fields.values() if field.alias
            }
            if unknown := sorted(map(str, given.keys() - names)):
                raise ValueError(
                    f"got {unknown}; expected fields of ChatDendrite. What an engine is loaded "
                    "with goes to it: ChatDendrite(engine=Engine(path, device=...))"
                )
        return given

    @model_validator(mode="after")
    def _open(self) -> Self:
        if self.engine is None:
            if not self.model:
                raise ValueError("got neither model nor engine; expected one of them")
            self.engine = Engine(self.model)
        self.model = self.model or self.engine.name
        self._chat = Chat(self.engine.session(seed=self.seed), keep=self.chats_kept)
        return self

    def get_token_ids(self, text: str) -> list[int]:
        """The text's tokens, by the model's own tokenizer, without special ones."""
        assert self.engine is not None
        return list(self.engine.encode(text, add_special=False).tolist())

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Tool] | None = None, **kwargs: Any
    ) -> int:
        """How many tokens the prompt of these messages has, by the model's own template.

        tools: that the template shows the model. Raises TypeError for other keywords.
        """
        if kwargs:
            raise TypeError(f"unexpected keyword arguments {sorted(kwargs)}; expected none")
        offered = [convert_to_openai_tool(tool) for tool in tools or ()]
        return len(self.get_token_ids(self._chat.prompt(_openai(messages), offered)))

    @property
    def _llm_type(self) -> str:
        return "dendrite-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "seed": self.seed, **self._params(None, {})}

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Choice = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools to call.

        `tool_choice`: "auto" (None) lets it answer in words; "any" ("required", True) makes it
        call one or more; a tool's name (also in OpenAI's form) makes it call that one, once; "none"
        (False) offers none. `parallel_tool_calls=False`: one call at most. Raises ValueError for a
        name that is none of the tools'. Where a call is required, a tool's schema that cannot be
        compiled is a ConstraintError, when the model is called.
        """
        offered = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        _chosen(offered, tool_choice, True)  # raises
        if "ls_structured_output_format" in kwargs:  # (which takes the first call)
            kwargs.setdefault("parallel_tool_calls", False)
        return self.bind(tools=offered, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["function_calling", "json_schema", "json_mode"] = "function_calling",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The model with answers of a schema: a pydantic class, a TypedDict, or JSON schema.

        "function_calling": it has to call a tool of that schema, which the chat template shows it;
        "json_schema", "json_mode": its answer is JSON of that schema, of which it knows what the
        messages say. Objects have no properties beside those that are listed.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method not in ("json_schema", "json_mode"):
            raise ValueError(
                f"method: got {method!r}; expected 'function_calling', 'json_schema' or 'json_mode'"
            )
        wanted = closed(convert_to_json_schema(schema))
        model = self.bind(
            response_format={"type": "json_schema", "json_schema": {"schema": wanted}},
            ls_structured_output_format={"kwargs": {"method": method}, "schema": schema},
        )
        is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
        parser = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks(
            [failed], exception_key="parsing_error"
        )

    def _asked(
        self, stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[Sequence[Mapping[str, Any]], ToolChoice, dict[str, Any]]:
        """The tools of one call, how they may be used, and the fields of DecodeParams."""
        tools, choice = _chosen(
            given.pop("tools", ()),
            given.pop("tool_choice", None),
            given.pop("parallel_tool_calls", None) is not False,
        )
        if (n := given.pop("n", None)) not in (None, 1):
            raise ValueError(f"n: got {n}; expected 1, and generate() or batch() of n messages")
        constraint = response_constraint(given.pop("response_format", None))
        if constraint is not None:
            given["constraint"] = constraint
        return tools, choice, self._params(stop, given)

    def _params(self, stop: list[str] | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of DecodeParams for one call."""
        mine = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "stop": stop if stop is not None else self.stop,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            **given,
        }
        return {name: value for name, value in mine.items() if value is not None}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        tools, choice, params = self._asked(stop, kwargs)
        return self._result(self._chat.answer(_openai(messages), tools, choice, **params))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        tools, choice, params = self._asked(stop, kwargs)
        return self._result(
            await self._chat.answer_async(_openai(messages), tools, choice, **params)
        )

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        chunks = _Chunks(self.model)
        tools, choice, params = self._asked(stop, kwargs)
        with closing(self._chat.stream(_openai(messages), tools, choice, **params)) as items:
            for item in items:
                yield chunks.of(item)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        chunks = _Chunks(self.model)
        tools, choice, params = self._asked(stop, kwargs)
        async with aclosing(
            self._chat.stream_async(_openai(messages), tools, choice, **params)
        ) as items:
            async for item in items:
                yield chunks.of(item)

    def _result(self, answer: Answer) -> ChatResult:
        message = AIMessage(
            content=answer.text,
            tool_calls=[
                tool_call(name=call.name, args=call.arguments, id=call.id) for call in answer.calls
            ],
            usage_metadata=_usage(answer),
            response_metadata=_metadata(self.model, answer),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


class _Chunks:
    """Turns what a chat streams into LangChain's chunks."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._calls = 0

    def of(self, item: str | ToolCall | Answer) -> ChatGenerationChunk:
        if isinstance(item, str):
            return ChatGenerationChunk(message=AIMessageChunk(content=item))
        if isinstance(item, ToolCall):
            return ChatGenerationChunk(message=self._call(item))
        last = AIMessageChunk(
            content="",
            usage_metadata=_usage(item),
            response_metadata=_metadata(self._model, item),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=last)

    def _call(self, call: ToolCall) -> AIMessageChunk:
        index, self._calls = self._calls, self._calls + 1
        chunk = tool_call_chunk(name=call.name, args=call.arguments_json(), id=call.id, index=index)
        return AIMessageChunk(content="", tool_call_chunks=[chunk])


def _openai(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    converted = convert_to_openai_messages(messages)
    return converted if isinstance(converted, list) else [converted]


def _chosen(
    tools: Sequence[Mapping[str, Any]], choice: Choice, parallel: bool
) -> tuple[Sequence[Mapping[str, Any]], ToolChoice]:
    """The tools that a tool_choice leaves, and how they may be used."""
    if isinstance(choice, Mapping):
        choice = choice["function"]["name"]
    if choice in ("none", False):
        return (), ToolChoice()
    if choice in (None, "auto"):
        return tools, ToolChoice(parallel=parallel)
    if choice in ("any", "required", True):
        return tools, ToolChoice(required=True, parallel=parallel)
    names = [function_of(tool)["name"] for tool in tools]
    if choice not in names:
        raise ValueError(f"tool_choice: got {choice!r}; expected one of {names}")
    return [tools[names.index(choice)]], ToolChoice(required=True, parallel=False)


def _usage(answer: Answer) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=answer.prompt_tokens,
        output_tokens=answer.tokens,
        total_tokens=answer.prompt_tokens + answer.tokens,
        input_token_details=InputTokenDetails(cache_read=answer.cached_tokens),
    )


def _metadata(model: str, answer: Answer) -> dict[str, Any]:
    made: dict[str, Any] = {"model_name": model, "finish_reason": answer.finish_reason}
    return made if answer.logprobs is None else made | {"logprobs": answer.logprobs}
