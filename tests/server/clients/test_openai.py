"""OpenAI's own client against dendrite serve."""
import asyncio
import contextlib
import json
import tempfile
import unittest

import openai
from served import MODELS, served

TOOLS = [tool if "function" in tool else {"type": "function", "function": tool}
         for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]
ASK = [{"role": "user", "content": "4 5 6 10"}]
TIME = [{"role": "user", "content": "What time is it in Lima?"}]


class OpenAITest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-24")) + "/v1"
        cls.tools_url = cls.enterClassContext(served("dendrite-tools")) + "/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        cls.tools = openai.OpenAI(base_url=cls.tools_url, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.tools.close)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["dendrite-24"])
        self.assertEqual(self.client.models.retrieve("dendrite-24").id, "dendrite-24")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("none")

    def test_create(self):
        chat = self.client.chat.completions.create(
            model="dendrite-24", messages=ASK, max_completion_tokens=40, n=2, seed=1, temperature=1,
            logprobs=True, top_logprobs=2)
        self.assertEqual(len(chat.choices), 2)
        self.assertEqual(chat.usage.total_tokens, chat.usage.prompt_tokens + chat.usage.completion_tokens)
        for choice in chat.choices:
            self.assertIn(choice.finish_reason, ("stop", "length"))
            text = "".join(token.token for token in choice.logprobs.content)
            self.assertEqual(text, choice.message.content)
            self.assertTrue(all(len(token.top_logprobs) == 2 for token in choice.logprobs.content))

    def test_stream_is_the_whole(self):
        ask = dict(model="dendrite-24", messages=ASK, max_tokens=400, n=2, seed=5, temperature=1)
        whole = self.client.chat.completions.create(**ask)
        with self.client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion()
        for a, b in zip(whole.choices, streamed.choices, strict=True):
            self.assertEqual(a.message.content, b.message.content)
            self.assertEqual(a.finish_reason, b.finish_reason)
        self.assertEqual(whole.usage.completion_tokens, streamed.usage.completion_tokens)
        self.assertEqual(whole.system_fingerprint, streamed.system_fingerprint)

    def test_tool_loop(self):
        messages = list(TIME)
        first = self.tools.chat.completions.create(model="dendrite-tools", messages=messages, tools=TOOLS)
        choice = first.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, "get_time")
        self.assertIn("Lima", json.loads(call.function.arguments).values())
        messages += [choice.message.to_dict(),
                     {"role": "tool", "tool_call_id": call.id, "content": "09:15"}]
        second = self.tools.chat.completions.create(model="dendrite-tools", messages=messages, tools=TOOLS)
        self.assertEqual(second.choices[0].message.content, "The result: 09:15")
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_streamed_call_is_the_whole(self):
        ask = dict(model="dendrite-tools", messages=TIME, tools=TOOLS)
        whole = self.tools.chat.completions.create(**ask).choices[0]
        with self.tools.chat.completions.stream(**ask) as stream:
            streamed = stream.get_final_completion().choices[0]
        self.assertEqual(len(whole.message.tool_calls), 1)
        self.assertEqual(streamed.finish_reason, whole.finish_reason)
        a, b = whole.message.tool_calls[0], streamed.message.tool_calls[0]
        self.assertEqual((a.function.name, a.function.arguments), (b.function.name, b.function.arguments))

    def test_schema(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                  "additionalProperties": False}
        chat = self.client.chat.completions.create(
            model="dendrite-24", messages=ASK, seed=2, temperature=1.5, max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
        if chat.choices[0].finish_reason == "stop":
            self.assertEqual(list(json.loads(chat.choices[0].message.content)), ["n"])
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.chat.completions.create(
                model="dendrite-24", messages=ASK,
                response_format={"type": "json_schema",
                                 "json_schema": {"name": "x", "schema": {"type": "strange"}}})
        self.assertEqual(refused.exception.code, "invalid_schema")

    def test_errors_have_their_types(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="none", messages=ASK)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.chat.completions.create(model="dendrite-24", messages=ASK, temperature=-1)
        self.assertEqual(refused.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as long:
            self.client.chat.completions.create(
                model="dendrite-24", messages=[{"role": "user", "content": "7 " * 2000}])
        self.assertEqual(long.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model="dendrite-24", messages=ASK,
                                                extra_body={"guided_regex": "a"})

    def test_key(self):
        with contextlib.ExitStack() as stack:
            keys = stack.enter_context(tempfile.NamedTemporaryFile("w"))
            keys.write("secret\n")
            keys.flush()
            url = stack.enter_context(served("dendrite-24", "--api-key-file", keys.name)) + "/v1"
            good = stack.enter_context(openai.OpenAI(base_url=url, api_key="secret", max_retries=0))
            self.assertTrue(list(good.models.list()))
            bad = stack.enter_context(openai.OpenAI(base_url=url, api_key="guess", max_retries=0))
            with self.assertRaises(openai.AuthenticationError):
                bad.models.list()

    def test_completions(self):
        done = self.client.completions.create(
            model="dendrite-24", prompt="S 24: 4 5 6 10\n", max_tokens=8, echo=True, logprobs=1, temperature=0)
        choice = done.choices[0]
        self.assertTrue(choice.text.startswith("S 24: 4 5 6 10\n"))
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.top_logprobs))
        text = "".join(
            chunk.choices[0].text
            for chunk in self.client.completions.create(model="dendrite-24", prompt="S 24: 4 5 6 10\n", max_tokens=8,
                                                        temperature=0, stream=True))
        self.assertEqual("S 24: 4 5 6 10\n" + text, choice.text)

    def test_decisions(self):
        decision = self.client.decisions.create(
            model="dendrite-24", input="S 24: 4 5 6 10",
            questions=[{"type": "predicate", "instructions": "Can it be solved?", "name": "solvable"},
                       {"type": "choice", "instructions": "Which number comes first?",
                        "choices": [{"value": "four"}, {"value": True, "description": "another"}]},
                       {"type": "score", "instructions": "How hard is it?",
                        "levels": [{"label": "easy"}, {"label": "hard"}, {"label": "impossible"}]}])
        first, second, third = decision.answers
        self.assertEqual((first.type, first.name), ("predicate", "solvable"))
        self.assertTrue(0 <= first.probability <= 1)
        self.assertIn(second.choice, ("four", True))
        self.assertAlmostEqual(sum(one.probability for one in second.probabilities), 1)
        self.assertAlmostEqual(sum(one.value * one.probability for one in third.probabilities), third.score)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.decisions.create(model="dendrite-24", input="x", questions=[])
        self.assertEqual(refused.exception.param, "questions")

    def test_many_at_once(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
                async def one(seed):
                    ask = dict(model="dendrite-24", messages=ASK, max_tokens=30, seed=seed % 64, temperature=1.5)
                    if seed % 2:
                        done = await client.chat.completions.create(**ask)
                        return seed % 64, done.choices[0].message.content
                    parts = []
                    async for chunk in await client.chat.completions.create(**ask, stream=True):
                        parts += [choice.delta.content or "" for choice in chunk.choices]
                    return seed % 64, "".join(parts)
                return await asyncio.gather(*(one(seed) for seed in range(256)))
        texts = {}
        for seed, text in asyncio.run(run()):
            self.assertEqual(texts.setdefault(seed, text), text)
        self.assertGreater(len(set(texts.values())), 1)


if __name__ == "__main__":
    unittest.main()
