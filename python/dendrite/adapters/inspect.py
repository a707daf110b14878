"""Inspect AI evaluations on Dendrite: the model provider "dendrite".

    pip install ".[inspect]"  # in a clone of Dendrite

On the command line, with all that `inspect` takes (-M gives options of Engine):

    inspect eval my_task.py --model dendrite/models/my-model -M kv_tokens=65536

In a program, also on an engine that is already loaded:

    from inspect_ai import eval
    from inspect_ai.model import get_model
    eval(my_task(), model=get_model("dendrite/my-model", engine=engine))

The name after "dendrite/" is a folder or an id in the local Hugging Face cache. Samples run
together: all generations share the engine's steps, and what begins like an earlier prompt or chat
is not computed again. Tools go through the model's own chat template; a call that the model begins
is of one of them, with arguments of its schema, `tool_choice` makes it call one, and
`response_schema` holds its answer to a schema. Needs asyncio, which is Inspect's default.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from dendrite import Engine, Error, JsonSchema, _chat
from dendrite._chat import Answer, Chat

#: Fields of `GenerateConfig` that would change answers, and have no means here.
UNSUPPORTED = (
    *("best_of", "frequency_penalty", "presence_penalty"),
    *("logprobs", "top_logprobs", "prompt_logprobs"),
)
#: Sampling parameters that Inspect knows no name for; they go through `extra_body`.
EXTRA = ("min_p", "repetition_penalty", "ignore_eos")


@modelapi(name="dendrite")
class DendriteAPI(ModelAPI):
    """The provider.

    model_name: a folder, or an id in the local Hugging Face cache.
    base_url, api_key: Inspect's, of models behind a network; nothing here.
    config: Inspect's, of which the seed is read.
    engine: a loaded Engine, instead of the model that the name stands for.
    keep: how many chats stay in memory to go on from.
    model_args: options of Engine (device, dtype, threads, kv_tokens, ...).

    `GenerateConfig.seed` is that of all draws, and is read once, here. `max_tokens` is, where it
    is unset, what the model's context leaves.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        engine: Engine | None = None,
        keep: int = 64,
        **model_args: Any,
    ) -> None:
        config = config or GenerateConfig()
        super().__init__(model_name, base_url, api_key, [], config)
        if engine is not None and model_args:
            raise Error(f"dendrite: got {sorted(model_args)} and an Engine, which is loaded")
        self._owned = engine is None
        self.engine = engine if engine is not None else Engine(model_name, **model_args)
        self.session = self.engine.session(seed=config.seed or 0)
        self._chat = Chat(self.session, keep=keep)

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """One answer, or `num_choices` of them in shared steps."""
        began = time.monotonic()
        messages = [_message(message) for message in input]
        shown = _tools(tools)
        prompt = self._chat.prompt(messages, shown)
        room = self.engine.info.max_positions - len(self.engine.encode(prompt, add_special=False))
        if room < 1:
            return ModelOutput.from_content(self.model_name, "", stop_reason="model_length")
        params = self._params(config, room)
        choice = _choice(tool_choice, config)
        asked = [
            self._chat.answer_async(messages, shown, choice, **params)
            for _ in range(config.num_choices or 1)
        ]
        answers = await asyncio.gather(*asked)
        return ModelOutput(
            model=self.model_name,
            choices=[self._choice(answer) for answer in answers],
            usage=_usage(answers),
            time=time.monotonic() - began,
        )

    def _params(self, config: GenerateConfig, room: int) -> dict[str, Any]:
        if unable := [name for name in UNSUPPORTED if getattr(config, name) not in (None, False)]:
            raise Error(f"got {unable} in the configuration; Dendrite's provider has none of them")
        extra = dict(config.extra_body or {})
        if unknown := sorted(extra.keys() - set(EXTRA)):
            raise Error(f"extra_body has {unknown}; expected {', '.join(EXTRA)}")
        return {
            "max_tokens": min(config.max_tokens or room, room),
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "stop": config.stop_seqs or (),
            "logit_bias": config.logit_bias,
            "constraint": _constraint(config),
            **extra,
        }

    def _choice(self, answer: Answer) -> ChatCompletionChoice:
        calls = [ToolCall(call.id, call.name, call.arguments) for call in answer.calls]
        message = ChatMessageAssistant(
            content=answer.text,
            tool_calls=calls or None,
            model=self.model_name,
            source="generate",
        )
        return ChatCompletionChoice(message=message, stop_reason=_stop_reason(answer))

    async def count_text_tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.engine.encode(text, add_special=False))

    async def tokenize(self, text: str) -> list[int]:
        """A text's tokens, without special ones."""
        return list(self.engine.encode(text, add_special=False).tolist())

    def max_connections(self) -> int:
        """How many samples generate together, unless the user says."""
        return 32

    def connection_key(self) -> str:
        """Each model has connections of its own."""
        return self.engine.info.model_path

    def close(self) -> None:
        """Frees the model, unless it was given one."""
        self.session.close()
        if self._owned:
            self.engine.close()


def _message(message: ChatMessage) -> dict[str, Any]:
    """A message in OpenAI's form."""
    out: dict[str, Any] = {"role": message.role, "content": _text(message)}
    if isinstance(message, ChatMessageTool):
        out |= {"tool_call_id": message.tool_call_id, "name": message.function or ""}
        if message.error is not None:
            out["content"] = f"Error: {message.error.message}"
    elif isinstance(message, ChatMessageAssistant):
        if thoughts := [part.text for part in _parts(message, ContentReasoning)]:
            out["reasoning_content"] = "\n".join(thoughts)
        if message.tool_calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
    return out


def _parts(message: ChatMessage, kind: type) -> list[Any]:
    return [part for part in message.content if isinstance(part, kind)]


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if not isinstance(part, (ContentText, ContentReasoning)):
            raise Error(f"a message has content of type {part.type!r}; expected text alone")
    return "\n".join(part.text for part in _parts(message, ContentText))


def _tools(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form. (Inspect has left out those that `tool_choice` excludes.)"""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.model_dump(exclude_none=True),
            },
        }
        for tool in tools
    ]


def _choice(choice: ToolChoice, config: GenerateConfig) -> _chat.ToolChoice:
    """How the tools may be used. (A ToolFunction has left its own alone.)"""
    named = isinstance(choice, ToolFunction)
    several = not named and config.parallel_tool_calls is not False
    return _chat.ToolChoice(required=named or choice == "any", parallel=several)


def _constraint(config: GenerateConfig) -> JsonSchema | None:
    wanted = config.response_schema
    return JsonSchema(wanted.json_schema.model_dump(exclude_none=True)) if wanted else None


def _stop_reason(answer: Answer) -> StopReason:
    if answer.calls:
        return "tool_calls"
    return "max_tokens" if answer.finish_reason == "length" else "stop"


def _usage(answers: Sequence[Answer]) -> ModelUsage:
    """Tokens that were computed, and apart from them those that were known already."""
    prompts = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    generated = sum(answer.tokens for answer in answers)
    return ModelUsage(
        input_tokens=prompts - cached,
        output_tokens=generated,
        total_tokens=prompts + generated,
        input_tokens_cache_read=cached,
    )
