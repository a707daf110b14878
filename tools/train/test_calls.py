"""Tests of the tool-call data and of the shipped model: python3 -m pytest test_calls.py (or -m unittest).

The split, the schemas and the calls are checked here in another way than they are made: from the JSON text alone.
"""

import collections
import dataclasses
import json
import unittest

from testing import MODELS, GeneratorTestCase, documents_of_rows, mixed_hash, needs  # first: it makes the modules beside it known

import tokenizer

MODEL = MODELS / "dendrite-tools"
TOOLS = {tool["name"]: tool["parameters"] for tool in json.loads((MODEL / "tools.json").read_text())}
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict}


def held_out(call):
    """The rule of calls.h, from the JSON text of a call."""
    return mixed_hash(call) % 10 == 0


def compact(call):
    return json.dumps(call, separators=(",", ":"))


def answer_to(result):
    """The rule of call_results.h."""
    if not result:
        return "Done."
    failed = result.startswith(("error", "Error", '{"error"'))
    return ("That did not work: " if failed else "The result: ") + result


@dataclasses.dataclass
class Turn:
    role: str
    begin: int  # of the tokens that the turn says, without its mark
    end: int  # behind <|eos|>, where it ends in that
    text: str

    def message(self):
        """In OpenAI's form; what reads like a call is one."""
        if self.role == "assistant" and self.text.startswith('{"name":') and '"arguments":' in self.text:
            return {"role": "assistant", "content": "", "tool_calls": [{"function": json.loads(self.text)}]}
        return {"role": self.role, "content": self.text}


def turns_of(ids):
    """The turns of a document from its tokens: each request and result ends in a newline, each reply in <|eos|>."""
    roles = {tokenizer.CALL: "user", tokenizer.RESULT: "tool"}
    assert ids[0] == tokenizer.BOS, ids[0]
    turns, at = [], 1
    newline = tokenizer.ID_OF_BYTE[ord("\n")]
    while at < len(ids):
        role = roles.get(ids[at], "assistant")
        begin = at + (role != "assistant")
        end = ids.index(tokenizer.EOS if role == "assistant" else newline, begin) + 1
        turns.append(Turn(role, begin, end, tokenizer.decode(ids[begin:end]).removesuffix("\n")))
        at = end
    return turns


def chat_renderer(as_text=False):
    """(messages, variables of the template) -> ids by the shipped folder, or their text."""
    import evaluate_calls
    return evaluate_calls.renderer(MODEL, as_text)


def shipped_requests():
    return [json.loads(line) for line in (MODEL / "heldout.jsonl").read_text().splitlines()]


class CallsTest(GeneratorTestCase):
    SOURCE = "generate_calls.cpp"

    def calls(self, *arguments):
        """(request, text of the call) of each document."""
        for text, learnt, ends in self.documents_of(*arguments):
            request, call = text.split("\n")
            self.assertEqual((learnt, ends), (call, True))
            yield request, call

    def assert_fits(self, value, schema):
        """`value` has the schema's type, its required properties, no others, and values of the enum."""
        self.assertIsInstance(value, TYPES[schema["type"]])
        self.assertEqual(isinstance(value, bool), schema["type"] == "boolean")
        self.assertIn(value, schema.get("enum", [value]))
        if schema["type"] == "object":
            self.assertLessEqual(set(schema["required"]), set(value))
            for name, inner in value.items():
                self.assert_fits(inner, schema["properties"][name])

    def test_shipped_files_are_what_the_generator_writes(self):
        self.assertEqual(self.generate("tools").decode(), (MODEL / "tools.json").read_text())
        self.assertEqual(self.generate("heldout").decode(), (MODEL / "heldout.jsonl").read_text())
        self.assertEqual(self.generate("chats").decode(), (MODEL / "heldout_chats.jsonl").read_text())

    def test_there_are_24_tools_of_one_to_four_slots_and_four_have_an_inner_object(self):
        slots, nested = collections.Counter(), 0
        for schema in TOOLS.values():
            inner = [p for p in schema["properties"].values() if p["type"] == "object"]
            nested += bool(inner)
            slots[len(schema["properties"]) - len(inner) + sum(len(p["properties"]) for p in inner)] += 1
        self.assertEqual((len(TOOLS), nested), (24, 4))
        self.assertEqual(set(slots), {1, 2, 3, 4})

    def test_calls_fit_the_schemas_and_are_said_in_the_request(self):
        seen = collections.Counter()
        for split in ("train", "heldout"):
            for request, call in self.calls("--count", 5000, "--split", split):
                parsed = json.loads(call)
                self.assertEqual(compact(parsed), call)
                self.assertEqual(list(parsed), ["name", "arguments"])
                self.assert_fits(parsed["arguments"], TOOLS[parsed["name"]])
                for name, value in parsed["arguments"].items():
                    schema = TOOLS[parsed["name"]]["properties"][name]
                    if schema["type"] in ("integer", "number") or name in ("city", "to", "text", "title", "query"):
                        if "enum" not in schema:
                            self.assertIn(str(value), request)
                seen[parsed["name"]] += 1
        self.assertEqual(set(seen), set(TOOLS))
        self.assertGreater(min(seen.values()), 0.7 * max(seen.values()))

    def test_no_held_out_combination_is_asked_for_in_training(self):
        rows = shipped_requests()
        measured = {compact(row["call"]) for row in rows}
        self.assertEqual((len(rows), len(measured)), (400, 400))
        self.assertEqual(sum(row["invented"] for row in rows), 100)
        self.assertTrue(all(map(held_out, measured)))
        for seed in (1, 24):
            for _, call in self.calls("--count", 20000, "--seed", seed):
                self.assertFalse(held_out(call))
                self.assertNotIn(call, measured)
        for _, call in self.calls("--count", 200, "--split", "heldout"):
            self.assertTrue(held_out(call))

    def test_a_request_asks_for_one_call_only(self):
        meant = {}
        for request, call in self.calls("--count", 40000):
            self.assertEqual(meant.setdefault(request, call), call)

    def test_a_seventh_of_the_requests_is_said_with_noise(self):
        """Counted by the openers alone, which are a fifth of it."""
        openers = ("please ", "hey, ", "hi, ", "ok, ", "um, ", "could you help? ", "quick one: ", "so, ", "now ",
                   "one more thing: ")
        count = 20000
        opened = sum(request.startswith(openers) for request, _ in self.calls("--count", count))
        self.assertAlmostEqual(opened / count, 0.15 / 5, delta=4 * (0.03 * 0.97 / count) ** 0.5)

    def test_rows_are_whole_documents_and_do_not_depend_on_threads(self):
        data = self.generate("rows", "--blocks", 2, "--threads", 1)
        self.assertEqual(data, self.generate("rows", "--blocks", 2, "--threads", 3))
        self.assertNotEqual(data, self.generate("rows", "--blocks", 2, "--seed", 2))
        padding = len(data) // 2
        for documents in documents_of_rows(data, 256, 0x7FFF):
            for document in documents:
                padding -= len(document)
                ids, learnt = [t & 0x7FFF for t in document], [t >> 15 for t in document]
                self.assertEqual((ids[1], ids[-1]), (tokenizer.CALL, tokenizer.EOS))
                request, call = tokenizer.decode(ids).split("\n")
                self.assertFalse(held_out(call))
                self.assertEqual(learnt, [0] * (2 + len(request) + 1) + [1] * (len(call) + 1))
        self.assertLess(padding / (len(data) // 2), 0.1)

    def test_chats_are_whole_and_learn_calls_and_answers(self):
        """Read from the tokens alone: what of a chat is learnt, and what an answer says of a result."""
        data = self.generate("rows", "--phase", 2, "--blocks", 1)
        self.assertEqual(data, self.generate("rows", "--phase", 2, "--blocks", 1, "--threads", 2))
        count, kinds = 0, collections.Counter()
        for documents in documents_of_rows(data, 1024, 0x7FFF):
            for document in documents:
                count += 1
                ids = [t & 0x7FFF for t in document]
                turns = turns_of(ids)
                self.assertEqual((turns[0].role, turns[-1].role, ids[-1]), ("user", "assistant", tokenizer.EOS))
                self.assertTrue(all(t >> 15 for t in document[turns[-1].begin:]))
                kinds[len(turns) > 2] += 1
                for before, turn in zip(turns, turns[1:]):
                    learnt = {t >> 15 for t in document[turn.begin:turn.end]}
                    self.assertEqual(len(learnt), 1 if turn.end > turn.begin else 0)
                    if turn.role == "tool":
                        self.assertEqual((before.role, learnt), ("assistant", {0}))
                        self.assertNotIn("\n", turn.text)
                        self.assertLessEqual(len(turn.text.encode()), 200)
                        self.assertFalse(turn.text and held_out(turn.text))
                    elif turn.role == "assistant" and before.role == "tool" and learnt == {1}:
                        kinds["answer"] += 1
                        self.assertEqual(turn.text, answer_to(before.text))
                    elif turn.role == "assistant" and learnt == {1}:
                        self.assertEqual(before.role, "user")
                        self.assertIn(json.loads(turn.text)["name"], TOOLS)
                        self.assertFalse(held_out(turn.text))
        self.assertAlmostEqual(kinds[True] / count, 0.5, delta=4 * 0.5 / count ** 0.5 + 0.05)  # long ones fit less often
        self.assertGreater(kinds["answer"], count / 3)

    @needs("jinja2", "torch")
    def test_the_template_writes_chats_as_they_were_learnt(self):
        render = chat_renderer()
        data = self.generate("rows", "--phase", 2, "--blocks", 1)
        for documents in documents_of_rows(data, 1024, 0x7FFF):
            for document in documents:
                ids = [t & 0x7FFF for t in document]
                messages = [turn.message() for turn in turns_of(ids)]
                if any(message["content"] != message["content"].strip() for message in messages):
                    continue
                self.assertEqual(render(messages), ids)

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, name in ((["rows", "--phase", "3", "--blocks", "1"], "--phase"), (["docs", "--split", "x"], "--split"),
                                (["tools", "--count", "1"], "--count"), ([], "usage")):
            self.assert_refuses(arguments, name)


class ShippedModelTest(unittest.TestCase):
    @needs("jinja2", "torch")
    def test_chat_template_renders_what_agents_send(self):
        render = chat_renderer(as_text=True)
        messages = [{"role": "system", "content": "tools"}, {"role": "user", "content": " Set a\ntimer "}]
        text = "<|bos|><|call|>Set a timer\n"
        self.assertEqual(render(messages), text)

        def goes_on(message, with_text):
            nonlocal text
            messages.append(message)
            text += with_text
            self.assertEqual(render(messages), text)

        call = {"name": "set_timer", "arguments": {"amount": 5, "label": "Tee für 2"}}
        goes_on({"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": call}]},
                '{"name":"set_timer","arguments":{"amount":5,"label":"Tee für 2"}}<|eos|>')
        goes_on({"role": "tool", "tool_call_id": "a", "content": "ok,\nset\n"}, "<|result|>ok, set\n")
        goes_on({"role": "assistant", "content": "The result: ok, set"}, "The result: ok, set<|eos|>")
        goes_on({"role": "user", "content": "And?"}, "<|call|>And?\n")
        calls = [{"function": {"name": "a", "arguments": '{"x": 1}'}}, {"function": {"name": "b", "arguments": {}}}]
        goes_on({"role": "assistant", "tool_calls": calls},
                '{"name":"a","arguments":{"x": 1}};{"name":"b","arguments":{}}<|eos|>')
        text += "<|result|>one; two\n"
        messages.append({"role": "tool", "content": "one"})
        goes_on({"role": "tool", "content": "two"}, "")
        self.assertEqual(render(messages, add_generation_prompt=True), text)

    @needs("torch")
    def test_template_and_tokens_are_those_of_the_job(self):
        from jobs import JOBS
        job = JOBS["dendrite-tools-chats"]
        self.assertEqual((MODEL / "chat_template.jinja").read_text(), job.chat_template)
        self.assertEqual(json.loads((MODEL / "tokenizer.json").read_text()), tokenizer.tokenizer_json(job.named_tokens))

    @needs("torch", "safetensors", "jinja2")
    def test_answers_to_results_are_exact(self):
        """The shortest, as the reference reads whole prompts for each token."""
        import export
        import evaluate_calls
        from decoding import Decoder
        rows = [row for row in map(json.loads, (MODEL / "heldout_chats.jsonl").read_text().splitlines())
                if "answer" in row]
        rows = sorted(rows, key=lambda row: len(json.dumps(row)))[:6]
        model, render = export.load(MODEL), chat_renderer()
        prompts = [render(row["messages"]) for row in rows]
        answers = [tokenizer.encode(row["answer"]) + [tokenizer.EOS] for row in rows]
        self.assertEqual(evaluate_calls.exact(model, prompts, answers), [True] * len(rows))
        decoder = Decoder(model)
        for prompt, row in zip(prompts, rows):
            texts, _ = decoder.complete([""], max_tokens=40, opening=prompt[1:])
            self.assertEqual(texts, [row["answer"]])
            wrong = [tokenizer.encode(row["answer"] + "x") + [tokenizer.EOS]]
            self.assertEqual(evaluate_calls.exact(model, [prompt], wrong), [False])

    @needs("torch", "safetensors")
    def test_greedy_calls_are_exact(self):
        import export
        from decoding import Decoder
        decoder = Decoder(export.load(MODEL))
        rows = [row for row in shipped_requests() if not row["invented"]][:6]
        texts, _ = decoder.complete([row["request"] + "\n" for row in rows], max_tokens=100, opening=[tokenizer.CALL])
        self.assertEqual(texts, [compact(row["call"]) for row in rows])


if __name__ == "__main__":
    unittest.main()
