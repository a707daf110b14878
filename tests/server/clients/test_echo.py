"""OpenAI's and Anthropic's clients read any text: dendrite-echo says what they mark, and three APIs have to carry it."""
import collections
import contextlib
import json
import unittest

import anthropic
import openai
from served import served

PARAMETERS = {
    "type": "object", "required": ["who", "seats"], "additionalProperties": False,
    "properties": {"who": {
        "type": "object", "required": ["name", "tags"], "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}},
        "seats": {"type": "integer", "minimum": -99, "maximum": 99}}}
FIRST = {"who": {"name": "Zoë 🦊", "tags": ['a "b"', "{c}\\n", "</tool"]}, "seats": 3}
SECOND = {"who": {"name": "Bo 🎉", "tags": ["é"]}, "seats": -12}
EMOJI = "Hi 🦊, 👩‍👩‍👧 → 漢字 🎉🎉 é"
TEXTS = [  # none of them has a tag
    EMOJI, "🦊", "a <tool_cal> b <tool_calls> c", "<thin", "x <thin k> </ think> <think", "ends in <tool_call",
    "<|im_end| > <", '{"name": "book"', 'one\n\ntwo: "q" & <b>']

# What a reply is, whichever API it came by; `end` by OpenAI's words. Streamed: what its deltas make.
Reply = collections.namedtuple("Reply", "thoughts text calls end")


def call(arguments):
    named = json.dumps({"name": "book", "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{named}\n</tool_call>"


def marked(text):
    return [{"role": "user", "content": f"Say \x02{text}\x03"}]


class Deltas:
    """Joins what a stream brings, each part of which has to be whole characters."""

    def __init__(self):
        self.texts = collections.defaultdict(list)

    def add(self, what, text):
        text.encode()  # a half of a surrogate pair is an error
        if "\ufffd" in text:
            raise AssertionError(f"broken characters in {text!r}")
        self.texts[what].append(text)

    def of(self, what):
        return "".join(self.texts[what])


class Chat:
    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    def ask(self, text, tools, stop, schema):
        more = {"tools": [{"type": "function", "function": {"name": "book", "parameters": PARAMETERS}}]} if tools else {}
        if stop:
            more["stop"] = stop
        if schema:
            more["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        return dict(model="dendrite-echo", messages=marked(text), temperature=0, **more)

    def whole(self, *ask):
        choice = self.client.chat.completions.create(**self.ask(*ask)).choices[0]
        said = choice.message
        return Reply(getattr(said, "reasoning_content", None) or "", said.content or "",
                     [(one.function.name, one.function.arguments) for one in said.tool_calls or []], choice.finish_reason)

    def streamed(self, *ask):
        deltas, names, end = Deltas(), [], None
        for chunk in self.client.chat.completions.create(**self.ask(*ask), stream=True):
            for choice in chunk.choices:
                end = choice.finish_reason or end
                deltas.add("thoughts", getattr(choice.delta, "reasoning_content", None) or "")
                deltas.add("text", choice.delta.content or "")
                for one in choice.delta.tool_calls or []:
                    names += [one.function.name] if one.function.name else []
                    deltas.add(one.index, one.function.arguments or "")
        return Reply(deltas.of("thoughts"), deltas.of("text"), [(name, deltas.of(i)) for i, name in enumerate(names)], end)


class Responses:
    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    def ask(self, text, tools, stop, schema):
        more = {"tools": [{"type": "function", "name": "book", "parameters": PARAMETERS, "strict": False}]} if tools else {}
        if schema:
            more["text"] = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
        return dict(model="dendrite-echo", input=marked(text), temperature=0, **more)

    @staticmethod
    def end(response, calls):
        return "tool_calls" if calls else "stop" if response.status == "completed" else response.status

    def whole(self, *ask):
        response = self.client.responses.create(**self.ask(*ask))
        calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
        thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content]
        return Reply("".join(thoughts), response.output_text, calls, self.end(response, calls))

    def streamed(self, *ask):
        deltas, names, last = Deltas(), {}, None
        for event in self.client.responses.create(**self.ask(*ask), stream=True):
            if event.type.endswith(".delta"):
                deltas.add(event.item_id if "arguments" in event.type else event.type, event.delta)
            elif event.type == "response.output_item.added" and event.item.type == "function_call":
                names[event.item.id] = event.item.name
            last = event
        calls = [(name, deltas.of(id)) for id, name in names.items()]
        return Reply(deltas.of("response.reasoning_text.delta"), deltas.of("response.output_text.delta"), calls,
                     self.end(last.response, calls))


class Messages:
    ENDS = {"end_turn": "stop", "tool_use": "tool_calls", "stop_sequence": "stop"}

    def __init__(self, url):
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def ask(self, text, tools, stop, schema):
        more = {"tools": [{"name": "book", "input_schema": PARAMETERS}]} if tools else {}
        if stop:
            more["stop_sequences"] = stop
        if schema:
            more["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        return dict(model="dendrite-echo", messages=marked(text), max_tokens=1000, thinking={"type": "adaptive"},
                    extra_body={"temperature": 0}, **more)

    def whole(self, *ask):
        message = self.client.messages.create(**self.ask(*ask))
        return Reply("".join(block.thinking for block in message.content if block.type == "thinking"),
                     "".join(block.text for block in message.content if block.type == "text"),
                     [(block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use"],
                     self.ENDS[message.stop_reason])

    def streamed(self, *ask):
        deltas, names, end = Deltas(), {}, None
        for event in self.client.messages.create(**self.ask(*ask), stream=True):
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                names[event.index] = event.content_block.name
            elif event.type == "content_block_delta":
                part = event.delta
                if part.type == "input_json_delta":
                    deltas.add(event.index, part.partial_json)
                elif part.type != "signature_delta":
                    deltas.add(part.type, getattr(part, part.type.removesuffix("_delta")))
            elif event.type == "message_delta":
                end = self.ENDS[event.delta.stop_reason]
        return Reply(deltas.of("thinking_delta"), deltas.of("text_delta"),
                     [(name, deltas.of(index)) for index, name in names.items()], end)


class EchoTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        url = cls.enterClassContext(served("dendrite-echo"))
        cls.chat, cls.responses, cls.messages = cls.apis = [api(url) for api in (Chat, Responses, Messages)]
        for api in cls.apis:
            cls.enterClassContext(contextlib.closing(api.client))

    def check(self, text, thoughts="", said="", calls=(), end="stop", *, tools=False, stop=None, schema=None, apis=None):
        """By each API, whole and streamed, the reply to what is marked."""
        for api in apis or self.apis:
            for how in (api.whole, api.streamed):
                with self.subTest(text=text, api=type(api).__name__, how=how.__name__):
                    reply = how(text, tools, stop, schema)
                    parsed = [(name, json.loads(arguments)) for name, arguments in reply.calls]
                    self.assertEqual(reply._replace(calls=parsed), Reply(thoughts, said, list(calls), end))

    def test_texts(self):
        for text in TEXTS:
            self.check(text, said=text)
            self.check(text, said=text, tools=True)

    def test_an_emoji_is_four_tokens_and_comes_when_all_are_there(self):
        ask = self.chat.ask(EMOJI, False, None, None) | {"logprobs": True}
        choice = self.chat.client.chat.completions.create(**ask).choices[0]
        self.assertEqual([bytes(token.bytes) for token in choice.logprobs.content], [bytes([byte]) for byte in EMOJI.encode()])
        for chunk in self.chat.client.chat.completions.create(**ask, stream=True):
            for part in chunk.choices:
                tokens = part.logprobs.content if part.logprobs else []
                self.assertEqual(b"".join(bytes(token.bytes) for token in tokens).decode(), part.delta.content or "")

    def test_thoughts(self):
        for thoughts, said in (("Why 🦊?\n\nSo.", "The answer"), ("a <b> </thin", "x"), ("only this", ""),
                               ("<tool_cal", "<think")):
            self.check(f"<think>\n{thoughts}\n</think>\n\n{said}", thoughts, said)

    def test_calls(self):
        both = [("book", FIRST), ("book", SECOND)]
        self.check(call(FIRST), calls=both[:1], end="tool_calls", tools=True)
        self.check(call(FIRST) + "\n" + call(SECOND), calls=both, end="tool_calls", tools=True)
        self.check("Well\n" + call(SECOND) + "\n" + call(FIRST), "", "Well", both[::-1], "tool_calls", tools=True)
        self.check("<think>\nBook 🎉\n</think>\n\n" + call(FIRST) + "\n" + call(SECOND), "Book 🎉", "", both, "tool_calls",
                   tools=True)

    def test_a_call_is_text_where_there_are_no_tools(self):
        self.check(call(SECOND), said=call(SECOND))

    def test_a_stop_ends_between_tokens(self):
        apis = (self.chat, self.messages)  # responses know no stop strings
        for text, stop, said in (
                ("one two END three", ["END"], "one two "), ("one 🦊🎉 two", ["🎉"], "one 🦊"),
                ("EN END ENDING", ["ENDI"], "EN END "), ("aab aaab", ["zz", "aaab"], "aab "),
                ("one\ntwo\n\nthree", ["\n\n"], "one\ntwo"), ("one EN", ["END"], "one EN"), ("one", ["on", "one"], "")):
            self.check(text, said=said, stop=stop, apis=apis)
        message = self.messages.client.messages.create(**self.messages.ask("a ENDE b", False, ["EX", "ENDE"], None))
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", "ENDE"))

    def test_a_schema_lets_through_what_it_allows(self):
        text = json.dumps(SECOND, ensure_ascii=False, separators=(",", ":"))
        self.check(text, said=text, schema=PARAMETERS)
        # And nothing else: what is marked has a text where the schema wants a number.
        wrong = text.replace("-12", '"twelve"')
        for api in self.apis:
            self.assertIsInstance(json.loads(api.whole(wrong, False, None, PARAMETERS).text)["seats"], int)


if __name__ == "__main__":
    unittest.main()
