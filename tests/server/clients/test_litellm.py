"""litellm against dendrite serve: as OpenAI's server, and as one of vLLM's."""
import asyncio
import json
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

from served import MODELS, served

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is looked up elsewhere
warnings.simplefilter("ignore")  # those of litellm's own types

import litellm  # noqa: E402

sys.path.append(str(MODELS.parent / "scripts" / "agents"))
import scripted_model  # noqa: E402

litellm.suppress_debug_info = True
ASK = [{"role": "user", "content": "What time is it in Lima?"}]
TOOLS = [tool if "function" in tool else {"type": "function", "function": tool}
         for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9},
                                           "ok": {"type": "boolean"}}, "required": ["n", "ok"],
          "additionalProperties": False}


class LiteLLMTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")  # unittest had set its own
        cls.url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m"))
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        scripted_model.write(folder)
        cls.thinking = cls.enterClassContext(served(folder, "--served-model-name", "m"))

    def by_both(self, test):
        for name in ("openai/m", "hosted_vllm/m"):
            def ask(url=self.url, name=name, **more):
                more = {"messages": ASK, "temperature": 0} | more
                return litellm.completion(model=name, api_base=url + "/v1", api_key="none", num_retries=0, **more)

            with self.subTest(name=name):
                test(ask)

    def test_tool_loop(self):
        def test(ask):
            first = ask(tools=TOOLS)
            self.assertEqual(first.choices[0].finish_reason, "tool_calls")
            [call] = first.choices[0].message.tool_calls
            self.assertEqual((call.function.name, call.function.arguments), ("get_time", '{"city":"Lima"}'))
            messages = [*ASK, first.choices[0].message.model_dump(),
                        {"role": "tool", "tool_call_id": call.id, "content": "09:15"}]
            second = ask(tools=TOOLS, messages=messages)
            self.assertEqual(second.choices[0].message.content, "The result: 09:15")
            self.assertEqual(second.choices[0].finish_reason, "stop")
            self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

        self.by_both(test)

    def test_streams_are_the_whole(self):
        def test(ask):
            for more in ({"tools": TOOLS}, {"temperature": 1, "seed": 3, "max_tokens": 60}):
                whole = ask(**more)
                chunks = list(ask(stream=True, stream_options={"include_usage": True}, **more))
                total = litellm.stream_chunk_builder(chunks, messages=ASK)
                self.assertGreater(len(chunks), 1)
                self.assertEqual(whole.choices[0].message.content or None, total.choices[0].message.content or None)
                self.assertEqual([(call.function.name, call.function.arguments)
                                  for call in whole.choices[0].message.tool_calls or []],
                                 [(call.function.name, call.function.arguments)
                                  for call in total.choices[0].message.tool_calls or []])
                self.assertEqual(whole.choices[0].finish_reason, total.choices[0].finish_reason)
                self.assertEqual(whole.usage.completion_tokens, total.usage.completion_tokens)
                self.assertEqual(whole.usage.prompt_tokens, total.usage.prompt_tokens)

        self.by_both(test)

    def test_thoughts_have_their_field(self):
        def test(ask):
            def thinking(does, **more):
                return ask(url=self.thinking, extra_body={"chat_template_kwargs": {"enable_thinking": does}}, **more)

            whole = thinking(True).choices[0].message
            total = litellm.stream_chunk_builder(list(thinking(True, stream=True))).choices[0].message
            for message in (whole, total):
                self.assertEqual(message.reasoning_content.strip(), "What is there to say?")
                self.assertEqual(message.content.strip(), "pong")
            self.assertFalse(hasattr(thinking(False).choices[0].message, "reasoning_content"))

        self.by_both(test)

    def test_schema_holds(self):
        def test(ask):
            for seed in range(8):
                reply = ask(temperature=1.5, seed=seed, max_tokens=200, response_format={
                    "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}})
                self.assertEqual(reply.choices[0].finish_reason, "stop")
                self.assertEqual(sorted(json.loads(reply.choices[0].message.content)), ["n", "ok"])

        self.by_both(test)

    def test_errors_are_mapped(self):
        def test(ask):
            with self.assertRaises(litellm.ContextWindowExceededError):
                ask(messages=[{"role": "user", "content": "a " * 2000}])
            with self.assertRaises(litellm.BadRequestError) as refused:
                ask(temperature=-1)
            self.assertEqual(refused.exception.status_code, 400)
            self.assertIn("temperature", str(refused.exception))
            with self.assertRaises(litellm.BadRequestError):
                ask(extra_body={"guided_regex": "a"})

        self.by_both(test)
        for prefix in ("openai", "hosted_vllm"):
            with self.assertRaises(litellm.NotFoundError):
                litellm.completion(f"{prefix}/other", ASK, api_base=self.url + "/v1", api_key="none", num_retries=0)

    def test_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("secret\n")
            keys.flush()
            with served("dendrite-tools", "--served-model-name", "m", "--api-key-file", keys.name) as url:
                for prefix in ("openai", "hosted_vllm"):
                    ask = dict(model=f"{prefix}/m", messages=ASK, api_base=url + "/v1", num_retries=0)
                    litellm.completion(api_key="secret", **ask)
                    with self.assertRaises(litellm.AuthenticationError):
                        litellm.completion(api_key="guess", **ask)

    def test_other_apis(self):
        ask = dict(api_base=self.url + "/v1", api_key="none", num_retries=0, temperature=0)
        text = litellm.text_completion(model="text-completion-openai/m", prompt="<|call|>What time is it in Lima?\n",
                                       max_tokens=100, **ask)
        self.assertEqual(text.choices[0].text, '{"name":"get_time","arguments":{"city":"Lima"}}')
        response = litellm.responses(model="openai/m", input=ASK[0]["content"], tools=[
            {"type": "function", **tool["function"]} for tool in TOOLS], **ask)
        self.assertEqual(response.output[-1].name, "get_time")

    def test_many_at_once(self):
        async def run():
            return await asyncio.gather(*(
                litellm.acompletion(model="hosted_vllm/m", messages=ASK, api_base=self.url + "/v1", api_key="none",
                                    temperature=1, seed=n % 4, max_tokens=40) for n in range(32)))

        texts = [reply.choices[0].message.content for reply in asyncio.run(run())]
        for n in range(4):
            self.assertEqual(len(set(texts[n::4])), 1)


if __name__ == "__main__":
    unittest.main()
