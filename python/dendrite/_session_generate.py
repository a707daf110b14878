"""A session's calls for many prompts and for chats."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

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


class GenerateCalls:
    """Session's part for many prompts and for chats; see dendrite.Session."""

    @overload
    def generate(  # type: ignore[overload-overlap]  # (a text is a sequence of texts)
        self,
        prompts: str | Tokens | Sequence[Message],
        params: DecodeParams | None = None,
        *,
        n: None = None,
        **fields: Unpack[GenerateFields],
    ) -> Generation: ...
    @overload
    def generate(  # type: ignore[overload-overlap]  # (a text is a sequence of texts)
        self,
        prompts: str | Tokens | Sequence[Message],
        params: DecodeParams | None = None,
        *,
        n: int,
        **fields: Unpack[GenerateFields],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: None = None,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> list[list[Generation]]: ...
    def generate(
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
        """What the model answers to prompts, however many, in their order.

        prompts: a text, token ids, or the messages of a chat, which its template renders; or a list
            of these. Of one there is one answer, of a list a list.
        params: how to decode; a list: one for each prompt. Keywords are fields of DecodeParams and
            replace those of `params`.
        n: so many samples of each prompt, as a list; None: one, without a list.
        at_once: so many prompts are in the engine at a time. None: as many as have 512 branches, of
            which those wait outside of steps that cannot go to their ends in the KV pool.
        progress: shows a bar by tqdm, or without it a line on stderr.
        echo: also the log-probs of the prompts' tokens: Generation.prompt_logprobs. Each prompt is
            read once more for it.
        echo_top: with echo, also so many of the likeliest tokens in each place:
            Generation.prompt_top.
        seeds: of each prompt its own, None among them for none; seed=... is one for all. What is
            drawn then depends on this number, the prompt and the parameters alone, not on the
            session, nor on what it was asked before.
        cancel: ends the call from anywhere: what was generated until then comes back, with
            Finish.CANCELLED.

        Prompts are computed once as far as they begin alike. Each draws from a random stream of its
        own, of the session's seed, its tokens, and how often they were asked for before: so the
        bits are those of one prompt after the other, whatever at_once is and whoever else is in
        the engine. All prompts are looked at before anything is computed: Error and TypeError name
        one that is empty, too long or no prompt by its index. An interrupt (Ctrl-C) ends the call
        with the step, and frees its pages.
        """
        requests, single = requests_of(
            cast("Session", self),
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
        for index, result in self._results(requests, at_once, progress, cancel):
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
    ) -> Iterator[tuple[int, Generation]]: ...
    @overload
    def generate_as_completed(
        self,
        prompts: Sequence[AnyPrompt],
        params: DecodeParams | Sequence[DecodeParams] | None = None,
        *,
        n: int,
        seeds: Sequence[int | None] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> Iterator[tuple[int, list[Generation]]]: ...
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
    ) -> Iterator[tuple[int, Any]]:
        """generate, whose arguments it takes: (index, answer) of each prompt as it ends.

        Steps are made while the next one is waited for. Closing the iterator ends the call.
        """
        requests, _ = requests_of(
            cast("Session", self),
            prompts,
            params,
            fields,
            n=n,
            at_once=at_once,
            seeds=seeds,
            echo=echo,
            echo_top=echo_top,
        )
        return (
            (index, result if n is not None else result[0])
            for index, result in self._results(requests, at_once, progress, cancel)
        )

    @overload
    def chat(
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
    def chat(
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
    def chat(
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
    def chat(
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
    def chat(
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
        """What the model replies in a chat, or in each of a list of them.

        messages: in OpenAI's form, each with "role" and "content"; the model's own template makes
            the prompt of them, with its special tokens, and nothing is put before it. A list of
            such lists: many chats, with a list of replies. A chat that goes on (append
            ChatReply.message()) computes what is new in it: the session keeps its last 16.
        tools: functions that the model may call, in OpenAI's form, or bare ({"name": ...,
            "parameters": ...}). Calls are read from the text in the form in which the model writes
            them, and held to their schemas while they are generated.
        tool_choice: auto; required: at least one call, and nothing else; none; or the name of the
            one tool that is to be called.
        template: further variables of the template, such as {"enable_thinking": False}.

        Other arguments are those of generate. A constraint says what a reply must be that calls no
        tool; beside tools it has to be a JsonSchema. Raises Error where the model has no template,
        and names the conversation that it cannot render.
        """
        session = cast("Session", self)
        requests, conversations, single = chat_requests(
            session, messages, tools, tool_choice, template, params, fields,
            n=n, at_once=at_once, seeds=seeds, echo=echo, echo_top=echo_top,
        )  # fmt: skip
        replies: list[list[ChatReply]] = [[] for _ in requests]
        keep = session._chat_state.kept.keep
        for index, result in self._results(requests, at_once, progress, cancel, keep):
            replies[index] = [conversations[index].reply(generation) for generation in result]
        answers = [each if n is not None else each[0] for each in replies]
        return answers[0] if single else answers

    def _results(
        self,
        requests: Sequence[Request],
        at_once: int | None,
        progress: bool,
        cancel: Cancel | None,
        keep: Callable[[Branch], object] | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Results as they end; steps are made in this thread, or by who makes them already."""
        session = cast("Session", self)
        _core.step(session.engine._handle)  # raises BranchBusy in a callback, which must not wait
        inbox = _core.Inbox(None)
        run = Run(session, requests, at_once, cancel, inbox, keep)
        with Bar(len(requests), progress) as bar:
            try:
                while True:
                    with _interrupt_ends(run.cancel):
                        ended = run.take()
                        while run.running and not ended:
                            _core.step_until(session.engine._handle, inbox)
                            ended = run.take()
                    for index, result in ended:
                        bar.add(1, sum(len(generation.ids) for generation in result))
                        yield index, result
                    if not run.running:
                        return
            finally:
                run.close()


@contextmanager
def _interrupt_ends(cancel: Callable[[], None]) -> Iterator[None]:
    """Within, an interrupt cancels; KeyboardInterrupt comes at the end of it.

    (It could come between any two instructions, and what was submitted by the first be lost.)
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    came = False

    def handle(number: int, frame: object) -> None:
        nonlocal came
        came = True
        cancel()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
