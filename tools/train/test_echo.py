"""Tests of the data and the template of the model of echoes: python3 -m pytest test_echo.py (or -m unittest).

What is learnt is found here in another way than it is made: from the marks in the tokens of a chat.
"""

import itertools
import json
import tempfile
import unittest

from testing import GeneratorTestCase, documents_of_rows, mixed_hash, needs  # first: it makes the modules beside it known

import tokenizer

LEARNT, IDS = 0x8000, 0x1FF
BEGIN, END = tokenizer.ID_OF_BYTE[2], tokenizer.ID_OF_BYTE[3]
ROW_TOKENS = 4096


def learnt_spans(document):
    """(tokens before, learnt tokens) of each run of learnt tokens."""
    at = 0
    while at < len(document):
        end = at
        while end < len(document) and document[end] & LEARNT:
            end += 1
        if end > at:
            yield [v & IDS for v in document[:at]], [v & IDS for v in document[at:end]]
        at = end + 1


def last_marked(tokens):
    begin = len(tokens) - 1 - tokens[::-1].index(BEGIN)
    return tokens[begin + 1:tokens.index(END, begin)]


class EchoDataTest(GeneratorTestCase):
    SOURCE = "generate_echo.cpp"

    def chats(self, phase):
        data = self.generate("rows", "--phase", phase, "--blocks", 1)
        return itertools.chain.from_iterable(documents_of_rows(data, ROW_TOKENS, IDS))

    def test_what_is_learnt_is_what_the_last_marks_hold(self):
        found = 0
        for phase, longest in ((1, 48), (2, 256), (3, 512)):
            for document in self.chats(phase):
                for before, learnt in learnt_spans(document):
                    self.assertEqual(learnt, last_marked(before) + [tokenizer.QWEN3_TURN_END])
                    self.assertLessEqual(len(learnt) - 1, 512 if phase == 3 else 4 * longest)
                    found += 1
        self.assertGreater(found, 1000)

    def test_marks_come_in_pairs(self):
        for document in self.chats(3):
            marks = [v & IDS for v in document if v & IDS in (BEGIN, END)]
            self.assertEqual(marks, [BEGIN, END] * (len(marks) // 2))

    def test_the_stream_does_not_depend_on_threads(self):
        one, three = (self.generate("rows", "--blocks", 4, "--threads", n) for n in (1, 3))
        self.assertEqual(one, three)

    def test_held_out_requests_are_held_out(self):
        rows = [json.loads(line) for line in self.generate("heldout", "--count", 4).splitlines()]
        self.assertEqual({row["kind"] for row in rows},
                         {"letters", "characters", "words", "json", "call", "thought", "code", "repeats", "lines"})
        plain = [row for row in rows
                 if len(row["answer"].encode()) >= 8 and not any(tag in row["answer"] for tag in tokenizer.TAGS)]
        self.assertGreater(len(plain), 50)
        for row in rows:
            self.assertIn("\x02" + row["answer"] + "\x03", row["message"])
        for row in plain:
            self.assertEqual(mixed_hash(row["answer"]) % 10, 0)

    def test_refuses(self):
        self.assert_refuses(["rows", "--phase", "4"], "--phase")
        self.assert_refuses(["heldout", "--sytem", "3"], "--sytem")


@needs("torch")
class BosTest(unittest.TestCase):
    def test_without_bos_no_document_sees_it(self):
        import torch

        import train

        torch.manual_seed(0)
        rows = torch.randint(0, 256, (2, 24))
        rows[:, [0, 9]] = tokenizer.BOS
        q, k, v = torch.randn(3, 2, 2, 24, 8)
        found = {}
        for name in ("dense", "sliced"):
            make, attend = train.DOCUMENT_ATTENTION[name](False, False)
            found[name] = attend(q, k, v, make(rows))
        torch.testing.assert_close(found["dense"], found["sliced"])
        v[:, :, [0, 9]] += 1
        make, attend = train.DOCUMENT_ATTENTION["dense"](False, False)
        changed = (attend(q, k, v, make(rows)) != found["dense"]).any(dim=-1).any(dim=1)
        self.assertEqual(changed.nonzero().tolist(), [[0, 0], [0, 9], [1, 0], [1, 9]])


@needs("torch", "jinja2")
class RequestsTest(unittest.TestCase):
    def test_a_line_ends_at_its_newline_alone(self):
        import evaluate_echo

        answers = ["a\u2028b", "c\x85d"]
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"answer": answer}, ensure_ascii=False) + "\n" for answer in answers)
            file.flush()
            self.assertEqual([row["answer"] for row in evaluate_echo.requests_of(file.name)], answers)


@needs("jinja2")
class TemplateTest(unittest.TestCase):
    def render(self, messages, **variables):
        import jinja2

        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
        return environment.from_string(tokenizer.QWEN3_TEMPLATE).render(messages=messages, **variables)

    def test_a_chat_with_calls_and_thoughts(self):
        call = {"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
        messages = [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "<think>\nold\n</think>\n\nHello"}, {"role": "user", "content": "Go"},
            {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [call, call]},
            {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
        said = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
        self.assertEqual(
            self.render(messages, add_generation_prompt=True, enable_thinking=False),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n"
            f"<|im_start|>assistant\n<think>\nnew\n</think>\n\n{said}\n{said}<|im_end|>\n"
            + "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n")


if __name__ == "__main__":
    unittest.main()
