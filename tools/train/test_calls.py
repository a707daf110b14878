"""Tests of the tool-call data and of the shipped model: python3 -m pytest test_calls.py (or -m unittest).

The split, the schemas and the calls are checked here in another way than they are made: from the JSON text alone.
"""

import collections
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

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, name in ((["rows", "--phase", "2", "--blocks", "1"], "--phase"), (["docs", "--split", "x"], "--split"),
                                (["tools", "--count", "1"], "--count"), ([], "usage")):
            self.assert_refuses(arguments, name)


class ShippedModelTest(unittest.TestCase):
    @needs("jinja2")
    def test_chat_template_renders_the_request(self):
        import jinja2
        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
            (MODEL / "chat_template.jinja").read_text())
        messages = [{"role": "system", "content": "tools"}, {"role": "user", "content": " Set a\ntimer "}]
        self.assertEqual(template.render(messages=messages, bos_token="<|bos|>"), "<|bos|><|call|>Set a timer\n")

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
