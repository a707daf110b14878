"""OpenAI's own client against the responses of dendrite serve."""
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import openai
import pydantic
from served import MODELS, served

TOOLS = [tool.get("function", tool) for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]
TOOLS = [{"type": "function", "name": tool["name"], "parameters": tool["parameters"], "strict": False}
         for tool in TOOLS]
TIME = "What time is it in Lima?"
ENDLESS = {"ignore_eos": True}


class Pair(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    n: int = pydantic.Field(ge=0, le=99)
    ok: bool


class ResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m")) + "/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)
        cls.create = cls.client.responses.create

    def ask(self, text=TIME, **more):
        return self.create(model="m", input=text, tools=TOOLS, temperature=0, **more)

    def result(self, response, output):
        return [{"type": "function_call_output", "call_id": response.output[-1].call_id, "output": output}]

    def test_tool_loop_goes_on_by_id(self):
        first = self.ask()
        call = first.output[-1]
        self.assertEqual((call.name, json.loads(call.arguments)), ("get_time", {"city": "Lima"}))
        second = self.create(model="m", previous_response_id=first.id, tools=TOOLS, temperature=0,
                             input=self.result(first, [{"type": "input_text", "text": "09:15"}]))
        self.assertEqual(second.output_text, "The result: 09:15")
        # Only what is new is computed, and one token that was drawn and not computed.
        said = first.usage.input_tokens + first.usage.output_tokens
        ours = second.usage.to_dict()["dendrite"]
        self.assertGreaterEqual(second.usage.input_tokens_details.cached_tokens, said - 1)
        self.assertLessEqual(ours["computed"], second.usage.input_tokens - said + 1)
        self.assertEqual((ours["recomputed"], ours["forked_from"]), (0, first.id))
        # It is what the whole conversation gives, sent anew.
        whole = self.create(model="m", tools=TOOLS, temperature=0, store=False, input=[
            {"role": "user", "content": TIME}, call.to_dict(), *self.result(first, "09:15")])
        self.assertEqual(whole.output_text, second.output_text)
        self.assertEqual(whole.usage.input_tokens, second.usage.input_tokens)
        items = self.client.responses.input_items.list(second.id, order="asc").data
        self.assertEqual([item.type for item in items], ["message", "function_call", "function_call_output"])

    def test_a_turn_by_id_is_the_stateless_one_to_the_bit(self):
        first = self.create(model="m", input="Tell me", max_output_tokens=30, extra_body={"seed": 3})
        ask = dict(model="m", max_output_tokens=40, include=["message.output_text.logprobs"], top_logprobs=2,
                   temperature=1)
        by_id = self.create(previous_response_id=first.id, input="And more?", extra_body={"seed": 9}, **ask)
        whole = self.create(input=[{"role": "user", "content": "Tell me"}, *(item.to_dict() for item in first.output),
                                   {"role": "user", "content": "And more?"}], extra_body={"seed": 9}, **ask)
        self.assertEqual(by_id.output_text, whole.output_text)
        self.assertEqual([item.to_dict() for item in by_id.output[0].content[0].logprobs],
                         [item.to_dict() for item in whole.output[0].content[0].logprobs])

    def test_stream_is_the_whole(self):
        for text, more in ((TIME, {}), ("Hello", {"extra_body": {"seed": 4}, "max_output_tokens": 50})):
            ask = dict(model="m", input=text, tools=TOOLS, **more)
            whole = self.create(**ask)
            events = []
            with self.client.responses.stream(**ask) as stream:
                events += list(stream)
            numbers = [event.sequence_number for event in events]
            self.assertEqual(numbers, list(range(len(numbers))))
            last = events[-1].response
            self.assertEqual(whole.output_text, last.output_text)
            self.assertEqual([item.type for item in whole.output], [item.type for item in last.output])
            self.assertEqual(whole.usage.output_tokens, last.usage.output_tokens)

    def test_get_replays(self):
        events = list(self.ask(stream=True))
        id = events[0].response.id
        again = list(self.client.responses.retrieve(id, stream=True))
        self.assertEqual([event.to_dict() for event in again], [event.to_dict() for event in events])
        rest = list(self.client.responses.retrieve(id, stream=True, starting_after=4))
        self.assertEqual([event.to_dict() for event in rest], [event.to_dict() for event in events[5:]])
        self.assertEqual(self.client.responses.retrieve(id).to_dict(), events[-1].response.to_dict())

    def test_a_running_one_is_watched_by_others(self):
        with self.create(model="m", input="Tell", stream=True, max_output_tokens=700, extra_body=ENDLESS) as stream:
            begun = [next(stream) for _ in range(8)]
            id = begun[0].response.id
            self.assertEqual(self.client.responses.retrieve(id).status, "in_progress")
            other = []
            watcher = threading.Thread(
                target=lambda: other.extend(self.client.responses.retrieve(id, stream=True, starting_after=2)))
            watcher.start()
            all = begun + list(stream)
            watcher.join()
        self.assertEqual([event.to_dict() for event in other], [event.to_dict() for event in all[3:]])

    def test_background_and_cancel(self):
        queued = self.create(model="m", input="Tell", background=True, max_output_tokens=700, extra_body=ENDLESS)
        self.assertEqual(queued.status, "queued")
        self.assertIn(self.client.responses.cancel(queued.id).status, ("cancelled", "incomplete"))
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(self.ask().id)

    def test_delete(self):
        first = self.ask()
        second = self.create(model="m", previous_response_id=first.id, tools=TOOLS, temperature=0,
                             input=self.result(first, "09:15"))
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as gone:
            self.create(model="m", previous_response_id=first.id, input="more")
        self.assertEqual(gone.exception.code, "previous_response_not_found")
        third = self.create(model="m", previous_response_id=second.id, input=TIME, tools=TOOLS, temperature=0)
        self.assertEqual(third.output[-1].name, "get_time")

    def test_fork_of_a_running_response(self):
        with self.create(model="m", input="Tell", stream=True, max_output_tokens=700, extra_body=ENDLESS) as stream:
            id = next(stream).response.id
            deltas = (event for event in stream if event.type.endswith(".delta"))
            for _ in range(3):
                next(deltas)
            fork = self.fork(id, {"max_output_tokens": 20, "seed": 1})
            early = self.fork(id, {"at": 2, "max_output_tokens": 20, "input": TIME})
            events = list(stream)
        parent = events[-1].response
        self.assertGreater(len(self.text_of(parent)), 0)
        said = fork["usage"]["input_tokens"] - parent.usage.input_tokens  # by the parent, when it was forked
        self.assertGreater(said, 0)
        self.assertEqual(fork["usage"]["dendrite"]["forked_from"], id)
        self.assertEqual(fork["usage"]["dendrite"]["computed"], 0)
        begun = self.text_of(parent)[:said // 2]
        self.assertTrue(self.text_of(openai.types.responses.Response.construct(**fork)).startswith(begun))
        items = self.client.responses.input_items.list(early["id"], order="asc").data
        self.assertEqual([item.role for item in items if item.type == "message"], ["user", "assistant", "user"])

    def fork(self, id, body):
        return self.client.post(f"/responses/{id}/fork", body=body, cast_to=dict[str, object])

    def text_of(self, response):
        parts = (item if isinstance(item, dict) else item.to_dict() for item in response.output)
        return "".join(part.get("arguments") or "".join(each["text"] for each in part["content"]) for part in parts)

    def test_schema_holds(self):
        response = self.client.responses.parse(model="m", input="A pair", text_format=Pair, max_output_tokens=200)
        self.assertIsInstance(response.output_parsed, Pair)

    def test_what_programs_send(self):
        probe = self.create(model="m", input="", max_output_tokens=1)
        self.assertEqual(probe.status, "incomplete")
        reply = self.client.responses.with_raw_response.create(
            model="m", temperature=0, store=False, include=["reasoning.encrypted_content"],
            input=[{"type": "message", "id": "msg_1", "role": "developer",
                    "content": [{"type": "input_text", "text": "You are a tool."}]},
                   {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TIME}]}],
            tools=[{"type": "custom", "name": "apply_patch"}, {"type": "web_search"},
                   {"type": "namespace", "name": "clock", "description": "", "tools": TOOLS}])
        self.assertEqual(reply.headers["x-dendrite-ignored"], "tools[0](apply_patch), tools[1](web_search)")
        call = reply.parse().output[-1]
        self.assertEqual((call.name, call.namespace), ("get_time", "clock"))
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(reply.parse().id)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.create(model="m", input="a", tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
        self.assertEqual(refused.exception.param, "tool_choice")

    def test_counts(self):
        count = self.client.responses.input_tokens.count(model="m", input=TIME, tools=TOOLS)
        self.assertEqual(count.input_tokens, self.ask().usage.input_tokens)


class SurvivalTest(unittest.TestCase):
    """What was acknowledged survives kill -9."""

    def start(self, folder):
        command = [os.environ["DENDRITE_PROGRAM"], "serve", "--model", str(MODELS / "dendrite-tools"), "--port", "0",
                   "--served-model-name", "m", "--response-store", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        return process, openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    def kill(self, process, client):
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        client.close()

    def test_responses_survive(self):
        with tempfile.TemporaryDirectory() as folder:
            kept, texts = [], {}
            for round in range(3):
                process, client = self.start(folder)
                for response in kept:
                    got = client.responses.retrieve(response.id)
                    self.assertEqual(got.to_dict(), response.to_dict())
                for index, response in enumerate(kept[:2]):
                    again = client.responses.create(model="m", previous_response_id=response.id, input="And more?",
                                                    max_output_tokens=30, extra_body={"seed": 7})
                    self.assertEqual(again.output_text, texts.setdefault(index, again.output_text))
                for seed in range(4):
                    kept.append(client.responses.create(
                        model="m", input=f"Tell me {seed}", max_output_tokens=20, extra_body={"seed": seed},
                        previous_response_id=kept[-1].id if kept and seed == 3 else None))
                gone = client.responses.create(model="m", input="Go", max_output_tokens=5)
                client.responses.delete(gone.id)
                with client.responses.create(model="m", input="Cut off", stream=True, extra_body=ENDLESS) as stream:
                    next(stream)
                    self.kill(process, client)  # with one that is being written
            process, client = self.start(folder)
            with self.assertRaises(openai.NotFoundError):
                client.responses.retrieve(gone.id)
            self.assertEqual(client.responses.retrieve(kept[-1].id).to_dict(), kept[-1].to_dict())
            self.kill(process, client)

    def test_whatever_was_acknowledged_survives_at_any_moment(self):
        moments = random.Random(5)
        with tempfile.TemporaryDirectory() as folder:
            kept = {}
            for _ in range(6):
                process, client = self.start(folder)
                for id, output in kept.items():
                    self.assertEqual(client.responses.retrieve(id).output_text, output)

                def work(seed):
                    id = None
                    with contextlib.suppress(openai.APIConnectionError):
                        for _ in range(1000):
                            response = client.responses.create(model="m", input="More", max_output_tokens=10,
                                                               previous_response_id=id, extra_body={"seed": seed})
                            kept[response.id] = response.output_text
                            id = response.id if response.usage.total_tokens < 500 else None

                workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
                for worker in workers:
                    worker.start()
                time.sleep(moments.uniform(0.05, 0.6))
                process.send_signal(signal.SIGKILL)
                for worker in workers:
                    worker.join()
                self.kill(process, client)
            self.assertGreater(len(kept), 20)


if __name__ == "__main__":
    unittest.main()
