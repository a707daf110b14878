"""Tool calls in text: the same however it is cut, and content where it is none."""

import importlib.util
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[1] / "dendrite/tools.py"


def _load():  # by its file: it needs no engine, and no native module
    spec = importlib.util.spec_from_file_location("tools", _FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_module = _load()
ToolCall, ToolCallParser = _module.ToolCall, _module.ToolCallParser

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "share": {"type": "number"},
                "wet": {"type": "boolean"},
                "tags": {"type": "array"},
                "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    },
}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, TIME]


def call(name="get_weather", **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def parse(pieces):
    """Content, put together, and calls; in the order in which they came out."""
    parser = ToolCallParser(TOOLS)
    items = []
    for piece in pieces:
        items += parser.feed(piece)
    items += parser.finish()
    joined = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


OSLO = ToolCall("get_weather", {"city": "Oslo"})
NOW = ToolCall("get_time", {})
FUNCTION = """<function=get_weather>
<parameter=city>
San
Francisco
</parameter>
<parameter=days>
3
</parameter>
</function>"""
SAN_FRANCISCO = ToolCall("get_weather", {"city": "San\nFrancisco", "days": 3})

CASES = {
    "nothing": ("", []),
    "text": ("  It is warm.\n", ["  It is warm.\n"]),
    "one": (f"<tool_call>\n{call(city='Oslo')}\n</tool_call>", [OSLO]),
    "text around": (
        f"Let me see.\n<tool_call>{call(city='Oslo')}</tool_call> Done.",
        ["Let me see.", OSLO, " Done."],
    ),
    "two": (
        f"<tool_call>\n{call(city='Oslo')}\n</tool_call>\n<tool_call>{call('get_time')}</tool_call>\n",
        [OSLO, NOW],
    ),
    "end tag in a string": (
        f"<tool_call>{call(city='a</tool_call>b')}</tool_call>",
        [ToolCall("get_weather", {"city": "a</tool_call>b"})],
    ),
    "no end tag": (f"<tool_call>{call(city='Oslo')}", [OSLO]),
    "cut in its arguments": ('<tool_call>{"name": "get_we', ['<tool_call>{"name": "get_we']),
    "unknown tool": (
        f"<tool_call>{call('fly')}</tool_call> x",
        [f"<tool_call>{call('fly')}</tool_call> x"],
    ),
    "bad, then good": (
        f"<tool_call>{{}}</tool_call><tool_call>{call(city='Oslo')}</tool_call>",
        ["<tool_call>{}</tool_call>", OSLO],
    ),
    "look-alikes": ("a < b <tool <tool_cal>", ["a < b <tool <tool_cal>"]),
    "functions": (f"<tool_call>\n{FUNCTION}\n</tool_call>", [SAN_FRANCISCO]),
    "bare function": (f"So:\n{FUNCTION}", ["So:", SAN_FRANCISCO]),
    "no parameters": ("<tool_call><function=get_time>\n</function></tool_call>", [NOW]),
    "json": (call(city="Oslo"), [OSLO]),
    "json, parameters": ('\n{"name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    "json, several": (f"{call(city='Oslo')}; {call('get_time')}", [OSLO, NOW]),
    "json, an array": (f"[{call(city='Oslo')}, {call('get_time')}]", [OSLO, NOW]),
    "json, no call": ('{"answer": 42} is it', ['{"answer": 42} is it']),
    "json, both keys": (
        '{"name": "get_time", "arguments": {}, "parameters": {}}',
        ['{"name": "get_time", "arguments": {}, "parameters": {}}'],
    ),
    "json, not at the start": (f"so {call(city='Oslo')}", [f"so {call(city='Oslo')}"]),
    "no json": ("[1] says {nothing}", ["[1] says {nothing}"]),
    "escapes": (
        '{"name": "get_weather", "arguments": {"city": "\\u00c5 \\"\\ud83d\\ude00\\" }{ é"}}',
        [ToolCall("get_weather", {"city": 'Å "😀" }{ é'})],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_any_cutting_gives_the_same(name):
    text, expected = CASES[name]
    assert parse([text]) == expected
    assert parse(list(text)) == expected
    for at in range(len(text)):
        assert parse([text[:at], text[at:]]) == expected
    draw = random.Random(7)
    for _ in range(20):
        cuts = [0, *sorted(draw.sample(range(len(text) + 1), min(5, len(text)))), len(text)]
        assert parse([text[a:b] for a, b in pairwise(cuts)]) == expected


def test_content_streams_while_no_call_is_possible():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("It is") == ["It is"]
    assert parser.feed(" warm <") == [" warm"]
    assert parser.feed("b") == [" <b"]
    assert ToolCallParser(TOOLS).feed("[1] is a citation") == ["[1]", " is a citation"]


def test_a_call_comes_with_its_last_character():
    parser = ToolCallParser(TOOLS)
    assert parser.feed(call(city="Oslo")[:-1]) == []
    assert parser.feed("}") == [OSLO]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("days", "3", 3),
        ("days", "three", "three"),
        ("share", "0.5", 0.5),
        ("share", "2", 2),
        ("wet", "True", True),
        ("wet", "maybe", "maybe"),
        ("tags", '["a", 1]', ["a", 1]),
        ("tags", "['a', None]", ["a", None]),
        ("tags", "a b", "a b"),
        ("unit", "null", None),
        ("city", "null", "null"),
        ("unknown", "7", "7"),
    ],
)
def test_parameters_take_the_type_of_their_schema(key, text, value):
    (found,) = parse([f"<function=get_weather><parameter={key}>\n{text}\n</parameter></function>"])
    assert found.arguments == {key: value}


def test_a_schema_may_refer_to_others():
    schema = {
        "properties": {
            "where": {"$ref": "#/$defs/Place"},
            "days": {"anyOf": [{"$ref": "#/$defs/N"}]},
        },
        "$defs": {"Place": {"type": "object"}, "N": {"type": ["integer", "null"]}},
    }
    parser = ToolCallParser([{"name": "f", "parameters": schema}])
    (found,) = parser.feed(
        '<function=f><parameter=where>\n{"city": "Oslo"}\n</parameter>'
        "<parameter=days>\n3\n</parameter></function>"
    )
    assert found.arguments == {"where": {"city": "Oslo"}, "days": 3}


def test_a_function_that_was_cut_short_is_content():
    cut = FUNCTION[: FUNCTION.index("</function>")]
    for text in (cut, f"<tool_call>\n{FUNCTION}\n{cut}", f"<tool_call>\n{cut}"):
        parser = ToolCallParser(TOOLS)
        assert parser.feed(text) + parser.finish(cut_short=True) == [text]
    for text in (FUNCTION, f"<tool_call>\n{FUNCTION}", f"<tool_call>{call(city='Oslo')}"):
        parser = ToolCallParser(TOOLS)
        (found,) = parser.feed(text) + parser.finish(cut_short=True)
        assert found in (SAN_FRANCISCO, OSLO)


def test_ids_are_unique():
    calls = parse([f"[{call('get_time')}, {call('get_time')}]"])
    assert len({found.id for found in calls}) == 2
    assert all(found.id.startswith("call_") and len(found.id) == 29 for found in calls)


QUOTE = '<|"|>'
FORMATS = {
    "glm": (
        "So.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        ["So.", ("get_weather", {"city": "Oslo", "days": 3})],
    ),
    "glm without arguments": ("<tool_call>get_time</tool_call>", [("get_time", {})]),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Oslo</parameter>\n</invoke>\n'
        '<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        [("get_weather", {"city": "Oslo"}), ("get_time", {})],
    ),
    "seed": (
        "<seed:tool_call>\n<function=get_weather>\n<parameter=days>3</parameter>\n</function>\n"
        "</seed:tool_call>",
        [("get_weather", {"days": 3})],
    ),
    "mistral": (
        'Hm.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[CALL_ID]abc[ARGS]{}',
        ["Hm.", ("get_weather", {"city": "Oslo"}), ("get_time", {})],
    ),
    "mistral's list": ("[TOOL_CALLS] [" + call("get_time") + "]", [("get_time", {})]),
    "mistral, unknown": ("[TOOL_CALLS]fly[ARGS]{}", ["[TOOL_CALLS]fly[ARGS]{}"]),
    "phi": ("<|tool_call|>[" + call("get_time") + "]<|/tool_call|>", [("get_time", {})]),
    "gemma": (
        f"<|tool_call>call:get_weather{{city:{QUOTE}a<tool_call|>b{QUOTE},days:3,"
        "tags:[1,{a:x y}]}<tool_call|>",
        [("get_weather", {"city": "a<tool_call|>b", "days": 3, "tags": [1, {"a": "x y"}]})],
    ),
    "gemma, broken": (
        "<|tool_call>call:get_weather{city:,a:1}<tool_call|>",
        ["<|tool_call>call:get_weather{city:,a:1}<tool_call|>"],
    ),
    "lfm": (
        "<|tool_call_start|>[get_weather(city='O, (s)', wet=True), get_time()]<|tool_call_end|>So.",
        [("get_weather", {"city": "O, (s)", "wet": True}), ("get_time", {}), "So."],
    ),
    "lfm, words of JSON": (
        '<|tool_call_start|>[get_weather(city="\\u00e9", wet=null, to=[true, 1])]<|tool_call_end|>',
        [("get_weather", {"city": "\u00e9", "wet": None, "to": [True, 1]})],
    ),
    "lfm, no keywords": (
        '<|tool_call_start|>[get_weather("Oslo")]<|tool_call_end|>',
        ['<|tool_call_start|>[get_weather("Oslo")]<|tool_call_end|>'],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_families_are_read_however_they_are_cut(name):
    text, wanted = FORMATS[name]

    def seen(pieces):
        items = parse(pieces)
        return [item if isinstance(item, str) else (item.name, item.arguments) for item in items]

    assert seen([text]) == wanted
    assert seen(list(text)) == wanted
    for at in range(len(text)):
        assert seen([text[:at], text[at:]]) == wanted
