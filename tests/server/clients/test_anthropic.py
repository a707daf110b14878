"""Anthropic's own client against dendrite serve."""
import asyncio
import json
import unittest

import anthropic
from served import MODELS, served

TOOLS = [tool.get("function", tool) for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]
TOOLS = [{"name": tool["name"], "description": tool.get("description", ""), "input_schema": tool["parameters"]}
         for tool in TOOLS]
TIME = [{"role": "user", "content": [{"type": "text", "text": "What time is it in Lima?",
                                      "cache_control": {"type": "ephemeral"}}]}]
ASK = [{"role": "user", "content": "4 5 6 10"}]
GREEDY = {"temperature": 0}  # the client has no such field any more, and servers do


class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-24", "--served-model-name", "m"))
        cls.tools_url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m"))
        cls.client = anthropic.Anthropic(base_url=cls.url, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        cls.tools = anthropic.Anthropic(base_url=cls.tools_url, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.tools.close)

    def test_stream_is_the_whole(self):
        ask = dict(model="m", messages=ASK, max_tokens=300, extra_body={"seed": 5, "temperature": 1})
        whole = self.client.messages.create(**ask)
        kinds = []
        with self.client.messages.stream(**ask) as stream:
            kinds += [event.type for event in stream]
            streamed = stream.get_final_message()
        self.assertEqual([block.text for block in whole.content], [block.text for block in streamed.content])
        self.assertEqual(whole.stop_reason, streamed.stop_reason)
        self.assertEqual(whole.usage.output_tokens, streamed.usage.output_tokens)
        self.assertEqual(whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
                         streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens)
        self.assertEqual(kinds[0], "message_start")
        self.assertEqual(kinds[-1], "message_stop")

    def test_tool_loop(self):
        messages = list(TIME)
        ask = dict(model="m", max_tokens=200, tools=TOOLS, extra_body=GREEDY)
        first = self.tools.messages.create(messages=messages, **ask)
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[-1]
        self.assertEqual((call.name, call.input), ("get_time", {"city": "Lima"}))
        with self.tools.messages.stream(messages=messages, **ask) as stream:
            streamed = stream.get_final_message().content[-1]
        self.assertEqual((streamed.name, streamed.input), (call.name, call.input))

        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                   "content": [{"type": "text", "text": "09:15"}]}]}]
        second = self.tools.messages.create(messages=messages, **ask)
        self.assertEqual([block.text for block in second.content], ["The result: 09:15"])
        self.assertEqual(second.stop_reason, "end_turn")
        # The call, which was generated, is read from where it was computed.
        self.assertGreater(second.usage.cache_read_input_tokens, first.usage.input_tokens)

        count = self.tools.messages.count_tokens(model="m", messages=messages, tools=TOOLS)
        self.assertEqual(count.input_tokens,
                         second.usage.input_tokens + second.usage.cache_read_input_tokens)

    def test_tools_that_are_not_ours_are_dropped_and_named(self):
        reply = self.tools.messages.with_raw_response.create(
            model="m", max_tokens=200, messages=TIME, extra_body=GREEDY,
            tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search"}])
        self.assertEqual(reply.headers["x-dendrite-ignored"], f"tools[{len(TOOLS)}](web_search)")
        self.assertEqual(reply.parse().stop_reason, "tool_use")

    def test_choices(self):
        ask = dict(model="m", max_tokens=200, messages=TIME, tools=TOOLS, extra_body=GREEDY)
        named = self.tools.messages.create(tool_choice={"type": "tool", "name": "set_alarm"}, **ask)
        self.assertEqual([block.name for block in named.content], ["set_alarm"])
        none = self.tools.messages.create(tool_choice={"type": "none"}, **ask)
        self.assertNotEqual(none.stop_reason, "tool_use")
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.tools.messages.create(tool_choice={"type": "tool", "name": "other"}, **ask)
        self.assertIn("tool_choice.name", str(refused.exception))

    def test_schema_holds(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
                                                  "ok": {"type": "boolean"}},
                  "required": ["n", "ok"], "additionalProperties": False}
        reply = self.client.messages.create(
            model="m", max_tokens=200, messages=ASK,
            output_config={"format": {"type": "json_schema", "schema": schema}})
        value = json.loads(reply.content[0].text)
        self.assertEqual(sorted(value), ["n", "ok"])

    def test_stops(self):
        # The call is no tool's here, so it is text.
        ask = dict(model="m", max_tokens=200, messages=TIME, extra_body=GREEDY)
        stopped = self.tools.messages.create(stop_sequences=["nothing", '"arguments"'], **ask)
        self.assertEqual(stopped.stop_reason, "stop_sequence")
        self.assertEqual(stopped.stop_sequence, '"arguments"')
        self.assertEqual(stopped.content[0].text, '{"name":"get_time",')
        cut = self.tools.messages.create(model="m", max_tokens=3, messages=TIME, extra_body=GREEDY)
        self.assertEqual(cut.stop_reason, "max_tokens")

    def test_more_than_fits_is_cut(self):
        with self.tools.messages.stream(model="m", max_tokens=32000, messages=TIME, tools=TOOLS) as stream:
            self.assertEqual(stream.get_final_message().stop_reason, "tool_use")

    def test_a_beginning_is_continued(self):
        begun = [*TIME, {"role": "assistant", "content": '{"name":"get_time",'}]
        reply = self.tools.messages.create(model="m", max_tokens=100, messages=begun, extra_body=GREEDY)
        self.assertEqual(reply.content[0].text, '"arguments":{"city":"Lima"}}')

    def test_what_programs_send(self):
        reply = self.tools.messages.with_raw_response.create(
            model="claude-haiku-4-5", max_tokens=200, tools=TOOLS,
            system=[{"type": "text", "text": "x-anthropic-billing-header: v=1; cch=1"},
                    {"type": "text", "text": "You are a tool.", "cache_control": {"type": "ephemeral"}}],
            messages=[*TIME, {"role": "system", "content": "A reminder."}], thinking={"type": "adaptive"},
            extra_query={"beta": "true"}, extra_headers={"anthropic-beta": "one,two"},
            extra_body={"temperature": 0, "output_config": {"effort": "high"},
                        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}})
        self.assertEqual(reply.headers["x-dendrite-ignored"], "system[0], model")
        self.assertEqual(reply.parse().model, "m")

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as long:
            self.tools.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "a " * 2000}])
        self.assertEqual(long.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("prompt is too long", long.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError) as missing:
            self.client.messages.create(model="other", max_tokens=9, messages=ASK)
        self.assertEqual(missing.exception.body["error"]["type"], "not_found_error")
        self.assertTrue(missing.exception.body["request_id"].startswith("req_"))
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}]}])

    def test_many_at_once(self):
        async def ask(client, seed):
            reply = await client.messages.create(model="m", max_tokens=60, messages=ASK,
                                                 extra_body={"seed": seed, "temperature": 1})
            return reply.content[0].text

        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.url, api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(ask(client, seed % 8) for seed in range(64)))

        texts = asyncio.run(run())
        for seed in range(8):
            self.assertEqual(len(set(texts[seed::8])), 1)


if __name__ == "__main__":
    unittest.main()
