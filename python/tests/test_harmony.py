"""Models that write Harmony: their prompts, what answers must be, and what is read of them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import DEVICE, ROOT

from dendrite import Engine, Finish, JsonSchema, ToolCall
from dendrite._call_grammar import CallGrammar, ToolChoice
from dendrite._chat import Answer, Chat
from dendrite._harmony import MARKS, HarmonyParser, Reasoning, messages_for, variables_for

TEMPLATE = """
{{- "<|im_start|>system\\nReasoning: " + (reasoning_effort or "medium") + "\\n" }}
{%- for tool in tools or [] %}{%- set f = tool.function %}
    {{- "// " + f.description + "\\n" + f.name }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {%- set f = message.tool_calls[0].function %}
        {{- "<|start|>assistant to=functions." + f.name + "<|channel|>commentary json<|message|>" }}
        {{- f.arguments | tojson + "<|call|>" }}
    {%- elif message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}
"""
NAMES = {
    "<think>": "<|channel|>",
    "</think>": "<|message|>",
    "<tool_call>": "<|start|>",
    "</tool_call>": "<|end|>",
    "<tool_response>": "<|call|>",
    "</tool_response>": "<|constrain|>",
}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"name": "get_weather", "parameters": WEATHER},
    {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
]
THINK = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Rome"}'
RAIN = ToolCall("get_weather", {"city": "Rome"})


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """dendrite-echo with the marks as its tokens, in which it says what it is told."""
    folder, model = tmp_path_factory.mktemp("harmony"), ROOT / "models/dendrite-echo"
    for file in model.iterdir():
        if file.name not in ("chat_template.jinja", "tokenizer.json"):
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] in NAMES:
            token |= {"content": NAMES[token["content"]], "special": True}
    pathlib.Path(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Engine(folder, device=DEVICE, threads=1, kv_tokens=8192) as engine:
        yield engine


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Say \x02{text}\x03 now."}]


def test_parts_of_a_reply_are_apart(harmony: Engine) -> None:
    with harmony.session() as session:
        said = session.chat(ask(f"{THINK}Sun?{NEXT}{FINAL}It rains."))
        assert (said.reasoning, said.text, said.finish_reason) == ("Sun?", "It rains.", "stop")
        called = session.chat(ask(f"{THINK}Sun?{NEXT}{CALL}"), TOOLS)
        assert (called.reasoning, called.text, called.tool_calls) == ("Sun?", "", (RAIN,))
        twice = session.chat([ask(FINAL + "a"), ask(FINAL + "b")])
        assert [reply.text for reply in twice] == ["a", "b"]
        chat = Chat(session)
        answer = chat.answer(ask(f"{THINK}Sun?{NEXT}{CALL}"), TOOLS)
        assert (answer.text, answer.calls) == ("", (RAIN,))
        items = list(chat.stream(ask(f"{THINK}Sun?{NEXT}{FINAL}It rains."), TOOLS))
        assert "".join(item for item in items if isinstance(item, str)) == "It rains."
        assert isinstance(items[-1], Answer)


def test_what_an_answer_must_be(harmony: Engine) -> None:
    free = {"temperature": 2.0, "max_tokens": 300, "logit_bias": {264: 6.0}}
    with harmony.session() as session:
        thought = session.chat(ask(f"{THINK}Sun?{NEXT}{CALL}"), TOOLS, tool_choice="required")
        assert (thought.reasoning, thought.text, thought.tool_calls) == ("Sun?", "", (RAIN,))
        for reply in session.chat(ask("x"), TOOLS, tool_choice="required", n=12, **free):
            if reply.finish is not Finish.LENGTH:  # one that is cut short is content
                assert reply.text == "" and len(reply.tool_calls) == 1
        schema = JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2})
        for tools in (None, TOOLS):
            for reply in session.chat(ask("x"), tools, constraint=schema, n=8, **free):
                if reply.finish is not Finish.LENGTH and not reply.tool_calls:
                    assert isinstance(json.loads(reply.text), list)
        stopped = session.chat(ask("x"), logit_bias={265: 1e4})
        assert stopped.ids == [265] and stopped.finish is Finish.STOP
    grammar = CallGrammar(harmony).constraint(TOOLS, ToolChoice())
    assert grammar is not None and '"commentary to=functions.get_time"' in grammar.text


def test_the_template_gets_all_of_a_conversation() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ("one", "two")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("two", "one")]
    messages = [
        {"role": "assistant", "content": "I look.", "thinking": "Two.", "tool_calls": calls},
        *results,
        {"role": "system", "content": "Be brief."},
    ]
    assert messages_for(messages) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": "",
            "thinking": "Two.\n\nI look.",
            "tool_calls": calls[:1],
        },
        results[1],
        {"role": "assistant", "content": "", "tool_calls": calls[1:]},
        results[0],
    ]
    assert variables_for({"reasoning_effort": "xhigh"}) == {"reasoning_effort": "high"}
    assert variables_for({"enable_thinking": False})["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{THINK}a{NEXT}{THINK}b{NEXT}{FINAL}c", [Reasoning("a\n\nb"), "c"]),
        (f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}<|call|>", ["I look.", RAIN]),
        (" to=get_time<|channel|>commentary json<|message|><|call|>", [ToolCall("get_time", {})]),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", [Reasoning("1 + 1")]),
        ("<|channel|>commentary to=functions.get_time<|message|>{no", ["{no"]),
        ("Hello", ["Hello"]),
        ("assistant", ["assistant"]),
    ],
)
def test_an_answer_is_read_by_its_marks(text: str, wanted: list[Any]) -> None:
    marks = {mark: -1 - i for i, mark in enumerate(MARKS)}
    parser = HarmonyParser(TOOLS, marks, "<|start|>assistant")
    items: list[Any] = []
    while text:
        mark = next((mark for mark in MARKS if text.startswith(mark)), None)
        items += parser.feed(marks[mark], "") if mark else parser.feed(ord(text[0]), text[0])
        text = text[len(mark or "x") :]
    items += parser.finish()
    joined: list[Any] = []
    for item in items:
        if joined and type(item) is type(joined[-1]) and isinstance(item, (str, Reasoning)):
            last = joined.pop()
            item = last + item if isinstance(item, str) else Reasoning(last.text + item.text)
        joined.append(item)
    assert joined == wanted
