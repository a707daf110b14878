"""The calls of asyncio's sessions for many prompts and for chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack, overload

from dendrite import _core
from dendrite._call_grammar import ToolChoice
from dendrite._core import Branch, Cancel, Generation
from dendrite._generate import AnyPrompt, GenerateFields, Request, Result, Run, requests_of
from dendrite._params import DecodeParams
from dendrite._progress import Bar
from dendrite._reply import ChatReply, chat_requests
from dendrite._types import Message, Tokens

if TYPE_CHECKING:
    from dendrite._session import Session


class AsyncGenerateCalls:
    """AsyncSession's part for many prompts and for chats; see dendrite.Session."""

    _session: Session

    @overload
    async def generate(  # type: ignore[overload-overlap]  # (a text is a sequence of texts)
        self,
        prompts: str | Tokens | Sequence[Message],
        params: DecodeParams | None = None,
        *,
        n: None = None,
        **fields: Unpack[GenerateFields],
    ) -> Generation: ...
    @overload
    async def generate(  # type: ignore[overload-overlap]  # (a text is a sequence of texts)
        self,
        prompts: str | Tokens | Sequence[Message],
        params: DecodeParams | None = None,
        *,
        n: int,
        **fields: Unpack[GenerateFields],
    ) -> list[Generation]: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: None = None,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[Generation]: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[list[Generation]]: ...
    async def generate(
        self,
        prompts: Any,
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int | None = None,
        at_once: int | None = None,
        progress: bool = False,
        echo: bool = False,
        echo_top: int = 0,
        seeds: Sequence[int | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Any,
    ) -> Any:
        """See Session.generate. A task that is cancelled ends the call."""
        requests, single = requests_of(
            self._session,
            prompts,
            params,
            fields,
            n=n,
            at_once=at_once,
            seeds=seeds,
            echo=echo,
            echo_top=echo_top,
        )
        results: list[Result] = [[] for _ in requests]
        async with aclosing(self._results(requests, at_once, progress, cancel)) as ended:
            async for index, result in ended:
                results[index] = result
        answers = [result if n is not None else result[0] for result in results]
        return answers[0] if single else answers

    @overload
    def generate_as_completed(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: None = None,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> AsyncGenerator[tuple[int, Generation], None]: ...
    @overload
    def generate_as_completed(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> AsyncGenerator[tuple[int, list[Generation]], None]: ...
    def generate_as_completed(
        self,
        prompts: Any,
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int | None = None,
        at_once: int | None = None,
        progress: bool = False,
        echo: bool = False,
        echo_top: int = 0,
        seeds: Sequence[int | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Any,
    ) -> AsyncGenerator[tuple[int, Any], None]:
        """See Session.generate_as_completed; tokens are generated meanwhile."""
        requests, _ = requests_of(
            self._session,
            prompts,
            params,
            fields,
            n=n,
            at_once=at_once,
            seeds=seeds,
            echo=echo,
            echo_top=echo_top,
        )

        async def each() -> AsyncGenerator[tuple[int, Any], None]:
            async with aclosing(self._results(requests, at_once, progress, cancel)) as ended:
                async for index, result in ended:
                    yield index, result if n is not None else result[0]

        return each()

    @overload
    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        params: DecodeParams | None = None,
        *,
        n: None = None,
        tool_choice: str | ToolChoice = "auto",
        template: Mapping[str, Any] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> ChatReply: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        params: DecodeParams | None = None,
        *,
        n: int,
        tool_choice: str | ToolChoice = "auto",
        template: Mapping[str, Any] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[ChatReply]: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Sequence[Message]],
        tools: Sequence[Message] | None = None,
        params: DecodeParams | None = None,
        *,
        n: None = None,
        tool_choice: str | ToolChoice = "auto",
        template: Mapping[str, Any] | None = None,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[ChatReply]: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Sequence[Message]],
        tools: Sequence[Message] | None = None,
        params: DecodeParams | None = None,
        *,
        n: int,
        tool_choice: str | ToolChoice = "auto",
        template: Mapping[str, Any] | None = None,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[list[ChatReply]]: ...
    async def chat(
        self,
        messages: Any,
        tools: Sequence[Message] | None = None,
        params: DecodeParams | None = None,
        *,
        n: int | None = None,
        tool_choice: str | ToolChoice = "auto",
        template: Mapping[str, Any] | None = None,
        at_once: int | None = None,
        progress: bool = False,
        echo: bool = False,
        echo_top: int = 0,
        seeds: Sequence[int | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Any,
    ) -> Any:
        """See Session.chat. A task that is cancelled ends the call."""
        requests, conversations, single = chat_requests(
            self._session, messages, tools, tool_choice, template, params, fields,
            n=n, at_once=at_once, seeds=seeds, echo=echo, echo_top=echo_top,
        )  # fmt: skip
        replies: list[list[ChatReply]] = [[] for _ in requests]
        keep = self._session._chat_state.kept.keep
        async with aclosing(self._results(requests, at_once, progress, cancel, keep)) as ended:
            async for index, result in ended:
                replies[index] = [conversations[index].reply(each) for each in result]
        answers = [each if n is not None else each[0] for each in replies]
        return answers[0] if single else answers

    async def _results(
        self,
        requests: Sequence[Request],
        at_once: int | None,
        progress: bool,
        cancel: Cancel | None,
        keep: Callable[[Branch], object] | None = None,
    ) -> AsyncGenerator[tuple[int, Result], None]:
        """Results as they end; the engine's thread makes the steps, and wakes the loop."""
        loop = asyncio.get_running_loop()
        some = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(some.set)

        run = Run(self._session, requests, at_once, cancel, _core.Inbox(wake), keep)
        with Bar(len(requests), progress) as bar:
            try:
                while True:
                    some.clear()
                    for index, result in run.take():
                        bar.add(1, sum(len(generation.ids) for generation in result))
                        yield index, result
                    if not run.running:
                        return
                    await some.wait()
            finally:
                run.cancel()
                while not run.ended:
                    some.clear()
                    if run.ended:
                        break
                    try:
                        await some.wait()
                    except asyncio.CancelledError:
                        continue  # once more: it ends with the step
                run.close()
