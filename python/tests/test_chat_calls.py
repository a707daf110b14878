"""Session.chat: one chat or many, calls of tools, thoughts apart, and chats that go on."""

from __future__ import annotations

import asyncio
import json
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import DEVICE, ROOT

from dendrite import (
    ChatReply,
    Engine,
    Error,
    Finish,
    Generation,
    JsonSchema,
    Regex,
    ToolCall,
    ToolCallParser,
    ToolChoice,
)
from dendrite._reply import Conversation, reasoning_tags

TOOLS = json.loads((ROOT / "models/dendrite-tools/tools.json").read_text())
RAIN = ToolCall("get_weather", {"city": "Rome", "day": "today"})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CHAT = [user("Will it rain in Rome today?")]


@pytest.fixture(scope="module")
def tools() -> Iterator[Engine]:
    with Engine(ROOT / "models/dendrite-tools", device=DEVICE, threads=1, kv_tokens=8192) as loaded:
        yield loaded


def test_calls_of_tools(tools: Engine) -> None:
    with tools.session() as session:
        reply = session.chat(CHAT, TOOLS)
        assert isinstance(reply, ChatReply)
        assert (reply.text, reply.tool_calls, reply.reasoning) == ("", (RAIN,), "")
        assert reply.finish_reason == "tool_calls" and reply.finish is reply.generation.finish
        full = session.chat(CHAT, [{"type": "function", "function": tool} for tool in TOOLS])
        assert full.tool_calls == (RAIN,)
        plain = session.chat(CHAT, max_tokens=9)
        assert (plain.text, plain.tool_calls) == ('{"name":"', ()) and len(plain.ids) == 9
        assert plain.finish_reason == "length"
        none = session.chat(CHAT, TOOLS, tool_choice="none", max_tokens=9)
        assert none.text == plain.text and none.ids == plain.ids
        named = session.chat(CHAT, TOOLS, tool_choice="get_time")
        assert [call.name for call in named.tool_calls] == ["get_time"]
        one = session.chat(CHAT, TOOLS, tool_choice=ToolChoice(required=True, parallel=False))
        assert one.tool_calls == (RAIN,)


def test_a_loop_is_closed_and_the_chat_goes_on(tools: Engine) -> None:
    """Request, call, result, answer, twice; what is known of the chat is not computed again."""
    with tools.session() as session:
        chat = list(CHAT)
        for city, result, said in (
            ("Rome", '{"sky":"sunny","temp":21}', 'The result: {"sky":"sunny","temp":21}'),
            ("Oslo", "error: no such city", "That did not work: error: no such city"),
        ):
            if city != "Rome":
                chat.append(user(f"Will it rain in {city} today?"))
            reply = session.chat(chat, TOOLS)
            assert [call.arguments["city"] for call in reply.tool_calls] == [city]
            chat.append(reply.message())
            before = session.stats().tokens_computed
            chat.append({"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": result})
            answer = session.chat(chat, TOOLS)
            assert (answer.text, answer.tool_calls, answer.finish_reason) == (said, (), "stop")
            computed = session.stats().tokens_computed - before
            assert computed < len(answer.ids) + len(result) + 8
            assert session.chat(chat).text == said, "without tools, too"
            chat.append(answer.message())


def test_one_bos(tools: Engine) -> None:
    with tools.session() as session:
        reply = session.chat(CHAT, max_tokens=1, echo=True, logprobs=True)
        [bos] = tools.info.bos
        ids = reply.generation.prompt_ids
        assert ids.count(bos) == 1 == ids.index(bos) + 1 and len(ids) == reply.prompt_tokens
        assert len(reply.generation.prompt_logprobs) == len(ids) and len(reply.logprobs) == 1


def test_many_chats(tools: Engine) -> None:
    chats = [CHAT, [user("What time is it in Lima?")], CHAT]
    with tools.session(seed=5) as session:
        wanted = [session.chat(chat, TOOLS, temperature=1.0) for chat in chats]
    with tools.session(seed=5) as session:
        out = session.chat(chats, TOOLS, temperature=1.0, at_once=2)
        assert [reply.ids for reply in out] == [reply.ids for reply in wanted]
        samples = session.chat(chats[:2], TOOLS, n=2)
        assert [[each.tool_calls[0].name for each in of_one] for of_one in samples] == [
            ["get_weather"] * 2,
            ["get_time"] * 2,
        ]

    async def run() -> tuple[list[ChatReply], ChatReply]:
        async with tools.session(seed=5) as session:
            return (
                await session.aio.chat(chats, TOOLS, temperature=1.0),
                await session.aio.chat(CHAT, TOOLS),
            )

    many, one = asyncio.run(run())
    assert [reply.ids for reply in many] == [reply.ids for reply in wanted]
    assert one.tool_calls == (RAIN,)


def test_a_chat_that_goes_on_computes_what_is_new(engine: Engine) -> None:
    with engine.session() as session:
        chat = [user("24: 10 4 6 5")]
        first = session.chat(chat, max_tokens=80)
        before = session.stats().tokens_computed
        chat += [first.message(), user("24: 2 3 5 12")]
        second = session.chat(chat, max_tokens=1)
        computed = session.stats().tokens_computed - before
        assert second.prompt_tokens > 40 and computed < second.prompt_tokens - first.prompt_tokens


def test_message_and_values(tools: Engine) -> None:
    with tools.session() as session:
        reply = session.chat(CHAT, TOOLS)
    [call] = reply.message()["tool_calls"]
    assert call["id"] == reply.tool_calls[0].id and call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == RAIN.arguments
    copy = pickle.loads(pickle.dumps(reply))
    assert copy.asdict() == reply.asdict() and copy.tool_calls == reply.tool_calls
    parser = ToolCallParser(TOOLS)  # public, for text from anywhere
    assert parser.feed(reply.generation.text) + parser.finish() == [RAIN]


def test_what_is_wrong_is_said(tools: Engine) -> None:
    with tools.session() as session:
        for wrong, says in (
            ("hello", "messages: got a str; expected a list"),
            ([], "messages: got an empty list"),
            (7, "messages: got an int"),
        ):
            with pytest.raises(TypeError, match=says):
                session.chat(wrong)  # type: ignore[call-overload]
        with pytest.raises(Error, match="tool_choice is 'call_mum'; expected auto, required, none"):
            session.chat(CHAT, TOOLS, tool_choice="call_mum")
        with pytest.raises(Error, match="a call is required, and there are no tools"):
            session.chat(CHAT, tool_choice="required")
        with pytest.raises(Error, match="expected a JsonSchema beside tools"):
            session.chat(CHAT, TOOLS, constraint=Regex("a"))
        with pytest.raises(Error, match="conversation 1: got content of type 'image_url'"):
            session.chat([CHAT, [{"role": "user", "content": [{"type": "image_url"}]}]])
        with pytest.raises(Error, match=r"tools\[0\] has no name"):
            session.chat(CHAT, [{"parameters": {}}])
        assert session.stats().tokens_computed == 0


def test_an_answer_beside_tools(tools: Engine) -> None:
    schema = JsonSchema({"const": "no"})
    with tools.session() as session:
        reply = session.chat(CHAT, TOOLS, constraint=schema, tool_choice="none")
        assert (reply.text, reply.tool_calls) == ('"no"', ())


def generation(text: str, finish: Finish = Finish.EOS, ids: tuple[int, ...] = ()) -> Generation:
    made = Generation.__new__(Generation)
    made.__setstate__((list(ids), text.encode(), finish, [], {}))
    return made


@pytest.mark.parametrize(
    ("text", "thinks", "reasoning", "said"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("hm\n</think>\n\nyes", True, "hm", "yes"),
        ("<think>\nhm, so", False, "hm, so", ""),  # cut short
        ("hm, so", True, "hm, so", ""),
        ("yes </think> no", False, "", "yes </think> no"),
        ("yes", False, "", "yes"),
    ],
)
def test_thoughts_are_apart(
    engine: Engine, text: str, thinks: bool, reasoning: str, said: str
) -> None:
    conversation = Conversation(3, ("<think>", "</think>"), thinks, (), engine)
    reply = conversation.reply(generation(text))
    assert (reply.reasoning, reply.text) == (reasoning, said)
    message = reply.message()
    assert message["content"] == said and message.get("reasoning_content", "") == reasoning
    plain = Conversation(3, None, False, (), engine).reply(generation(text))
    assert (plain.reasoning, plain.text) == ("", text)


def test_thoughts_between_special_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"[THINK]": 256, "[/THINK]": 257}  # whose text is left out of a generation's
    monkeypatch.setattr("dendrite._reply.added_tokens", lambda path: known)
    conversation = Conversation(3, ("[THINK]", "[/THINK]"), False, (), engine)
    thought, said = engine.encode("ab", add_special=False), engine.encode("cd", add_special=False)
    ids = (256, *thought.tolist(), 257, *said.tolist())
    reply = conversation.reply(generation("abcd", ids=ids))
    assert (reply.reasoning, reply.text) == ("ab", "cd")
    cut = conversation.reply(generation("ab", Finish.LENGTH, ids[:3]))
    assert (cut.reasoning, cut.text) == ("ab", "")


def test_a_call_behind_thoughts(engine: Engine) -> None:
    conversation = Conversation(3, ("<think>", "</think>"), True, TOOLS, engine)
    call = json.dumps({"name": RAIN.name, "arguments": RAIN.arguments})
    reply = conversation.reply(generation(f"rain?</think>\n<tool_call>{call}</tool_call>"))
    assert (reply.reasoning, reply.text, reply.tool_calls) == ("rain?", "", (RAIN,))


def test_models_tell_their_tags(tmp_path: pathlib.Path) -> None:
    for name, template, wanted in (
        ("qwen", "{{ '<think>\\n\\n</think>' }}", ("<think>", "</think>")),
        ("magistral", "{{ '[/THINK]' }}", ("[THINK]", "[/THINK]")),
        ("plain", "{{ bos_token }}", None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "chat_template.jinja").write_text(template)
        assert reasoning_tags(str(folder)) == wanted
        (folder / "chat_template.jinja").unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        reasoning_tags.cache_clear()
        assert reasoning_tags(str(folder)) == wanted
