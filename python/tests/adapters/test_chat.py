"""What the chat adapters share, over models/dendrite-24 and models/dendrite-tools."""

import asyncio
import json
import shutil
from typing import NamedTuple

import pytest
from schema_help import check

from dendrite import ConstraintError, Engine, Error, Finish, JsonObject, JsonSchema, Regex
from dendrite._call_grammar import CallGrammar
from dendrite._chat import (
    Answer,
    BranchCache,
    Chat,
    ToolCall,
    ToolCallParser,
    ToolChoice,
    for_template,
    response_constraint,
)

from .game24 import MODELS

TOOLS = json.loads((MODELS / "dendrite-tools/tools.json").read_text())


def user(text):
    return {"role": "user", "content": text}


def test_messages_become_what_templates_read():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parts = [{"type": "text", "text": "a"}, "b"]
    messages = for_template(
        [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    )
    assert messages[0] == user("a\nb")
    assert messages[1]["content"] == ""
    assert messages[1]["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    ]
    assert call["function"]["arguments"] == '{"x": 1}'  # the caller's stay as they are
    with pytest.raises(ValueError, match="got content of type 'image_url'"):
        for_template([{"role": "user", "content": [{"type": "image_url"}]}])


def test_streams_and_whole_answers_are_the_same(engine_tools):
    question = [user("Will it rain in Rome today?")]
    wanted = ToolCall("get_weather", {"city": "Rome", "day": "today"})
    with engine_tools.session() as session:
        chat = Chat(session)
        whole = chat.answer(question, TOOLS)
        assert (whole.text, whole.calls, whole.finish) == ("", (wanted,), Finish.STOP)
        assert whole.finish_reason == "tool_calls"
        *items, streamed = chat.stream(question, TOOLS)
        assert items == [wanted] and isinstance(streamed, Answer)
        assert (streamed.calls, streamed.tokens) == (whole.calls, whole.tokens)
        *pieces, plain = chat.stream(question, max_tokens=9)
        assert "".join(pieces) == plain.text == '{"name":"' and len(pieces) > 1
        assert plain.finish_reason == "length"

        async def both():
            *items, last = [item async for item in chat.stream_async(question, TOOLS)]
            return items, last, await chat.answer_async(question, TOOLS)

        items, streamed, answer = asyncio.run(both())
        assert items == [wanted] and streamed.calls == answer.calls == whole.calls


def test_a_chat_goes_on_from_its_branch(engine_24):
    with engine_24.session() as session:
        chat = Chat(session)
        messages = [user("24: 10 4 6 5")]
        first = chat.answer(messages)
        messages += [{"role": "assistant", "content": first.text}, user("24: 2 3 5 12")]
        computed = session.stats().tokens_computed
        second = chat.answer(messages, max_tokens=0)
        assert second.cached_tokens >= first.prompt_tokens + first.tokens - 1
        new = session.stats().tokens_computed - computed
        assert new == second.prompt_tokens - second.cached_tokens


def test_the_cache_lets_go_of_the_oldest_and_of_what_is_continued(engine_24):
    with engine_24.session() as session:
        cache = BranchCache(2)
        branch = session.prefill("S 24: 4 5 6 10\n")
        cache.keep(branch)
        session.decode(branch, max_tokens=4)
        cache.keep(branch)
        assert len(cache) == 1
        for prompt in ("S 24: 1 2 3 4\n", "S 24: 2 3 4 5\n"):
            with session.prefill(prompt) as other:
                cache.keep(other)
        assert len(cache) == 2
        branch.prune()
        assert session.stats().branches_live == 2
        cache.clear()
        assert session.stats().branches_live == 0
        none = BranchCache(0)
        with session.prefill("S 24: 1 2 3 4\n") as other:
            none.keep(other)
        assert len(none) == 0


def test_streams_that_are_left_free_their_branches(engine_24):
    with engine_24.session() as session:
        chat = Chat(session, keep=0)
        stream = chat.stream([user("24: 10 4 6 5")])
        next(stream)
        stream.close()
        assert session.stats().branches_live == 0

        async def leave():
            stream = chat.stream_async([user("24: 10 4 6 5")])
            await anext(stream)
            await stream.aclose()
            task = asyncio.create_task(chat.answer_async([user("24: 10 4 6 5")]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(leave())
        assert session.stats().branches_live == 0


PLAN = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "when": {"$ref": "#/$defs/When"},
        "days": {"type": "integer", "minimum": 0, "maximum": 30},
        "unit": {"anyOf": [{"enum": ["C", "F"], "type": "string"}, {"type": "null"}]},
        "stops": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 9},
            "maxItems": 3,
        },
    },
    "required": ["city", "when", "unit"],
    "$defs": {"When": {"enum": ["now", "later"], "type": "string"}},
}
CLOSED = {**PLAN, "additionalProperties": False}
NONE = {"type": "object", "properties": {}}
CLOSED_NONE = {**NONE, "additionalProperties": False}
FOREIGN = [
    {"type": "function", "function": {"name": "plan", "description": "", "parameters": PLAN}},
    {"type": "function", "function": {"name": "stop", "description": "", "parameters": NONE}},
]
REQUIRED, ONE = ToolChoice(required=True), ToolChoice(required=True, parallel=False)
ASK = [user("Will it rain in Rome today?")]

# How templates of the families write a call.
JSON_CALL = '{{ {"name": f.name, "%s": f.arguments} | tojson }}'
FUNCTION_CALL = (
    "<function={{ f.name }}>\n{%%- for key, value in f.arguments.items() -%%}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{%%- endfor -%%}</function>%s"
)
TAGS = ("<tool_call>", "</tool_call>")
KEYS_CALL = (
    "<tool_call>{{ f.name }}NL{%- for key, value in f.arguments.items() -%}"
    "<arg_key>{{ key }}</arg_key>NL<arg_value>{{ value }}</arg_value>NL{%- endfor -%}</tool_call>"
)
KEYS_TAGS = (*TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
INVOKE_CALL = (
    '<minimax:tool_call>\n<invoke name="{{ f.name }}">\n'
    "{%- for key, value in f.arguments.items() -%}"
    '<parameter name="{{ key }}">{{ value }}</parameter>\n{%- endfor -%}</invoke>\n'
    "</minimax:tool_call>"
)
GEMMA_CALL = (
    "<|tool_call>call:{{ f.name }}{{ '{' }}{%- for key, value in f.arguments.items() -%}"
    "{{ ',' if not loop.first }}{{ key }}:<|\"|>{{ value }}<|\"|>{%- endfor -%}{{ '}' }}"
    "<tool_call|>"
)
PYTHON_CALL = (
    "<|tool_call_start|>[{{ f.name }}({%- for key, value in f.arguments.items() -%}"
    "{{ ', ' if not loop.first }}{{ key }}={{ value | tojson }}{%- endfor -%})]<|tool_call_end|>"
)
MISTRAL_TAGS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")


class Form(NamedTuple):
    call: str  # in a template
    tags: tuple[str, ...] = ()  # that are tokens of their own
    special: bool = False  # ... and no text
    begun: str = "Well: <tool_call>"  # how a call begins in a text


FORMS = {
    "json": Form(JSON_CALL % "arguments", begun='{"name":'),
    "parameters": Form(JSON_CALL % "parameters", begun='\n { "name" :'),
    "tagged": Form(f"<tool_call>\n{JSON_CALL % 'arguments'}\n</tool_call>", TAGS),
    "spelt": Form(f"<tool_call>\n{JSON_CALL % 'arguments'}\n</tool_call>"),
    "function": Form(f"<tool_call>\n{FUNCTION_CALL % ''}\n</tool_call>", TAGS),
    "bare": Form(FUNCTION_CALL % "", begun="Well,\n<function="),
    "seed": Form(
        f"<seed:tool_call>\n{FUNCTION_CALL % ''}\n</seed:tool_call>".replace(
            "\n{{ value }}\n", "{{ value }}"
        ),
        ("<seed:tool_call>", "</seed:tool_call>"),
        begun="Well: <seed:tool_call>",
    ),
    "minimax": Form(
        INVOKE_CALL,
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        begun="Well: <minimax:tool_call>",
    ),
    "glm45": Form(KEYS_CALL.replace("NL", "{{ '\n' }}"), KEYS_TAGS),
    "glm47": Form(KEYS_CALL.replace("NL", ""), KEYS_TAGS),
    "mistral": Form(
        "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
        MISTRAL_TAGS,
        True,
        "Well: [TOOL_CALLS]",
    ),
    "mistral_list": Form(
        f"[TOOL_CALLS] [{JSON_CALL % 'arguments'}]", MISTRAL_TAGS, True, "Well: [TOOL_CALLS]"
    ),
    "phi4": Form(
        f"<|tool_call|>{JSON_CALL % 'arguments'}<|/tool_call|>",
        ("<|tool_call|>", "<|/tool_call|>"),
        True,
        "Well: <|tool_call|>",
    ),
    "gemma4": Form(
        GEMMA_CALL, ("<|tool_call>", "<tool_call|>", '<|"|>'), True, "Well: <|tool_call>"
    ),
    "lfm2": Form(
        PYTHON_CALL,
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        True,
        "Well: <|tool_call_start|>",
    ),
}


def copy_of(folder, template, tags=(), special=False, **tokenizer_fields):
    """dendrite-tools with a template, and with tags as tokens of their own."""
    shutil.copytree(MODELS / "dendrite-tools", folder)
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = json.loads((folder / "tokenizer.json").read_text()) | tokenizer_fields
    reserved = [t for t in tokenizer["added_tokens"] if "reserved" in t["content"]]
    for tag, token in zip(tags, reserved, strict=False):
        token |= {"content": tag, "special": special}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Engine(folder, threads=1)


@pytest.fixture(scope="module", params=FORMS)
def family(request, tmp_path_factory):
    """A model whose template writes calls in one of the forms."""
    form = FORMS[request.param]
    template = (
        "{{- bos_token -}}{%- for m in messages -%}{%- if m.tool_calls -%}"
        "{%- for c in m.tool_calls -%}{%- set f = c.function -%}" + form.call + "{%- endfor -%}"
        "{%- elif m.role == 'user' -%}{{- '<|call|>' + m.content + '\n' -}}{%- endif -%}"
        "{%- endfor -%}"
    )
    folder = tmp_path_factory.mktemp("model") / request.param
    with copy_of(folder, template, form.tags, form.special) as engine:
        yield engine


def check_calls(calls):
    for call in calls:
        check(call.arguments, {"plan": CLOSED, "stop": CLOSED_NONE}[call.name])


def test_a_required_call_is_valid_in_every_form(family):
    names = []
    for seed in range(25):
        with family.session(seed=seed) as session:
            chat = Chat(session)
            one = chat.answer(ASK, FOREIGN, ONE, temperature=2.0, max_tokens=400)
            assert (one.text, len(one.calls), one.finish) == ("", 1, Finish.STOP)
            assert one.finish_reason == "tool_calls"
            some = chat.answer(ASK, FOREIGN, REQUIRED, temperature=2.0, max_tokens=400)
            cut = some.finish is Finish.LENGTH  # perhaps inside of a list of calls
            assert cut or (some.calls and some.text == "")
            check_calls([*one.calls, *some.calls])
            names.append(one.calls[0].name)
    assert {*names} == {"plan", "stop"}


def test_text_stays_free(engine_24, engine_tools):
    with engine_24.session() as session:
        chat = Chat(session)
        question = [user("24: 10 4 6 5")]
        without, with_tools = chat.answer(question), chat.answer(question, FOREIGN)
        assert (with_tools.text, with_tools.calls) == (without.text, ())
        assert with_tools.tokens == without.tokens > 20
    with engine_tools.session() as session:  # and a call that is right is not changed
        chat = Chat(session)
        assert chat.answer(ASK, TOOLS).tokens == chat.answer(ASK).tokens


def test_a_call_that_begins_is_held(family, request):
    begun = FORMS[request.node.callspec.params["family"]].begun
    grammar = CallGrammar(family)
    alone = grammar.constraint(FOREIGN, ToolChoice(parallel=False))
    several = grammar.constraint(FOREIGN, ToolChoice())
    for seed in range(25):
        with family.session(seed=seed) as session:
            root = session.prefill("<|call|>Will it rain in Rome today?\n")
            for constraint in (alone, several):
                branch = root.fork().constrain(constraint).append(begun)
                out = session.decode(branch, temperature=2.0, max_tokens=400)
                parser = ToolCallParser(FOREIGN)
                said = family.decode(branch.tokens[branch.prompt_length :])
                items = parser.feed(said) + parser.finish(out.finish is Finish.LENGTH)
                calls = [item for item in items if isinstance(item, ToolCall)]
                cut = out.finish is Finish.LENGTH and constraint is several
                assert cut or (calls and (out.finish is Finish.STOP or constraint is several))
                check_calls(calls)
                assert constraint is several or len(calls) == 1
    assert alone == grammar.constraint(FOREIGN, ToolChoice(parallel=False))


def test_an_answer_may_have_a_schema_beside_tools(family, request):
    said = {
        "type": "object",
        "properties": {"name": {"const": "Rome"}, "sure": {"type": "boolean"}},
        "required": ["name", "sure"],
        "additionalProperties": False,
    }
    kinds = set()
    begun = FORMS[request.node.callspec.params["family"]].begun
    tag = begun.split()[-1] if "Well" in begun else "<"
    calls, answers = (
        {int(family.encode(text, add_special=False)[0]): 50.0 for text in begin}
        for begin in ((tag, "<", "p"), ("{", "R"))
    )
    for seed in range(20):
        with family.session(seed=seed) as session:
            answer = Chat(session).answer(
                ASK,
                FOREIGN,
                ToolChoice(parallel=False),
                constraint=JsonSchema(said),
                temperature=2.0,
                logit_bias=calls if seed % 2 else answers,
                max_tokens=400,
            )
            assert answer.finish is Finish.STOP and bool(answer.text) != bool(answer.calls)
            check_calls(answer.calls)
            if answer.text:
                check(json.loads(answer.text), said)
            kinds.add(bool(answer.text))
    assert kinds == {False, True}
    with family.session() as session, pytest.raises(Error, match="expected a JsonSchema beside"):
        Chat(session).answer(ASK, FOREIGN, constraint=Regex("a"))


def test_answers_of_a_schema(engine_tools):
    schema = {"type": "json_schema", "json_schema": {"name": "plan", "schema": CLOSED}}
    assert response_constraint(schema) == response_constraint(
        {"type": "json_schema", "schema": CLOSED}
    )
    assert response_constraint({"type": "json_object"}) == JsonObject()
    assert response_constraint({"type": "text"}) is response_constraint(None) is None
    for wrong in ({"type": "xml"}, {"type": "json_schema"}, "json"):
        with pytest.raises(ValueError, match="response_format: got .*; expected"):
            response_constraint(wrong)
    for seed in range(25):
        with engine_tools.session(seed=seed) as session:
            *pieces, answer = Chat(session).stream(
                ASK, constraint=response_constraint(schema), temperature=2.0, max_tokens=400
            )
            assert answer.finish_reason == "stop" and "".join(pieces) == answer.text
            check(json.loads(answer.text), CLOSED)


def test_tools_that_cannot_be_compiled(family):
    """They are named, and take no others with them: left out where a call must be made, else called
    with any arguments. An error where none is left."""
    kinds = {
        "uniqueItems": {"x": {"type": "array", "uniqueItems": True}},
        "contains": {"x": {"type": "array", "contains": {"type": "integer"}}},
        "not": {"x": {"type": "array", "items": {"not": {"type": "string"}}}},
    }
    for keyword, properties in kinds.items():
        odd = {"name": "odd", "parameters": {"type": "object", "properties": properties}}
        for place in (0, len(FOREIGN)):
            tools = [*FOREIGN[:place], odd, *FOREIGN[place:]]
            grammar = CallGrammar(family)
            with pytest.warns(UserWarning, match=f'tool "odd": .*{keyword}.*; it is left out'):
                held = grammar.constraint(tools, REQUIRED)
            assert held == CallGrammar(family).constraint(FOREIGN, REQUIRED)
            with pytest.warns(UserWarning, match=f'tool "odd": .*{keyword}.*; it may be called'):
                text = grammar.constraint(tools, ToolChoice()).text
            assert keyword not in text and "odd" in text and "plan" in text
        with pytest.raises(ConstraintError, match=f'tool "odd": .*{keyword}'):
            CallGrammar(family).constraint([odd], REQUIRED)
    broken = {"name": "odd", "parameters": {"type": "object", "properties": [1]}}
    with pytest.warns(UserWarning, match='tool "odd": .*; it is left out'):
        CallGrammar(family).constraint([*FOREIGN, broken], REQUIRED)


def test_a_model_that_cannot_be_constrained(tmp_path):
    template = "{{- bos_token + '<|call|>' + messages[-1].content + '\\n' -}}"
    with copy_of(tmp_path / "words", template, decoder=None) as engine:
        with pytest.raises(ConstraintError, match="decoder"):
            engine.check(JsonObject())
        with engine.session() as session:
            chat = Chat(session)
            assert chat.answer(ASK, FOREIGN).tokens == chat.answer(ASK).tokens > 20
            with pytest.raises(ConstraintError, match="decoder"):
                chat.answer(ASK, FOREIGN, REQUIRED)


def test_an_answer_that_is_held_from_its_start_does_not_think_first(tmp_path):
    template = "{{- bos_token + messages[-1].content + '\\n<think>\\n' -}}"
    with copy_of(tmp_path / "thinker", template) as engine, engine.session() as session:
        chat = Chat(session)
        prompt = chat.prompt(ASK)
        assert prompt.endswith("<think>\n")
        lengths = [
            chat.answer(ASK, tools, choice, max_tokens=1, **params).prompt_tokens
            for tools, choice, params in (
                ((), ToolChoice(), {}),
                (FOREIGN, ToolChoice(), {}),
                (FOREIGN, REQUIRED, {}),
                ((), ToolChoice(), {"constraint": JsonObject()}),
            )
        ]
    more = len("\n</think>\n\n")
    assert [length - len(prompt) + len("<|bos|>") - 1 for length in lengths] == [0, 0, more, more]
