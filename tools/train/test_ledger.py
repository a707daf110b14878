"""Tests of the data and the model of ledgers: python3 -m pytest test_ledger.py (or -m unittest).

What is learnt is found here by another reader of ledgers than the one that writes them.
"""

import itertools
import json
import re
import tempfile
import unittest

from testing import GeneratorTestCase, documents_of_rows, needs  # first: it makes the modules beside it known

import tokenizer

LEARNT, IDS = 0x8000, 0x1FF
ROW_TOKENS = 512
BYTE_OF_ID = {token: byte for byte, token in enumerate(tokenizer.ID_OF_BYTE)}


def text_of(document):
    """(A document as text, which of its characters are learnt)."""
    characters = [(chr(BYTE_OF_ID[v & IDS]), bool(v & LEARNT)) for v in document if v & IDS in BYTE_OF_ID]
    return "".join(c for c, _ in characters), [learnt for _, learnt in characters]


def answers_to(text):
    """(where it begins, answer) of each question of a ledger, by reading it line by line."""
    facts, counts, at = {}, dict.fromkeys("ABCD", 0), 0
    for line in text.splitlines(keepends=True):
        if "?" in line:
            asked = line[:line.index("?")]
            every = "".join(f"{kind}{count}" for kind, count in counts.items())
            answer = every if not asked else facts[asked] if asked in facts else str(counts[asked])
            yield at + len(asked) + 1, answer + "\n"
        elif line[0] in "+-":
            counts[line[1]] = counts[line[1]] + 1 if line[0] == "+" else 0
        else:
            name, number = line.rstrip("\n").split("=")
            facts[name] = number
        at += len(line)


class LedgerDataTest(GeneratorTestCase):
    SOURCE = "generate_ledger.cpp"

    def ledgers(self, phase):
        data = self.generate("rows", "--phase", phase, "--blocks", 1)
        return itertools.chain.from_iterable(documents_of_rows(data, ROW_TOKENS, IDS))

    def test_what_is_learnt_is_what_is_right(self):
        kinds = dict.fromkeys((2, 4, 9), 0)
        for phase in (1, 2, 3):
            for document in self.ledgers(phase):
                text, learnt = text_of(document)
                right = [False] * len(text)
                for at, answer in answers_to(text):
                    self.assertEqual(text[at:at + len(answer)], answer)
                    right[at:at + len(answer)] = [True] * len(answer)
                    kinds[len(answer)] += 1
                self.assertEqual(learnt, right)
        self.assertGreater(min(kinds.values()), 500)

    def test_ledgers_grow_with_the_phase(self):
        longest = [max(len(document) for document in self.ledgers(phase)) for phase in (1, 2, 3)]
        self.assertLess(longest[0], 130)
        self.assertLess(longest[1], 260)
        self.assertGreater(longest[2], 400)

    def test_names_are_a_letter_twice_at_first(self):
        for phase in (1, 2, 3):
            names = {name for document in self.ledgers(phase)
                     for name in re.findall("^(..)=", text_of(document)[0], re.MULTILINE)}
            doubled = {name for name in names if name[0] == name[1]}
            self.assertGreater(len(doubled), 20)
            self.assertEqual(names == doubled, phase == 1)

    def test_the_stream_does_not_depend_on_threads(self):
        one, three = (self.generate("rows", "--blocks", 4, "--threads", n) for n in (1, 3))
        self.assertEqual(one, three)

    def test_held_out_ledgers_are_of_the_length_that_was_asked_for(self):
        for size in (200, 3000):
            for line in self.generate("heldout", "--count", 5, "--bytes", size).splitlines():
                text = json.loads(line)
                self.assertLessEqual(len(text), size)
                self.assertGreater(len(text), size - 11)
                self.assertGreater(len(list(answers_to(text))), size // 40)

    def test_refuses(self):
        self.assert_refuses(["rows", "--phase", "4"], "--phase")
        self.assert_refuses(["heldout", "--byts", "3"], "--byts")


@needs("torch")
class DeltaRuleTest(unittest.TestCase):
    def test_chunks_are_what_rows_one_by_one_give(self):
        import torch

        from delta import CHUNK, delta_rule

        torch.manual_seed(0)
        length = 2 * CHUNK + 5
        q, k, v = (torch.randn(2, 3, length, width, dtype=torch.float64) for width in (8, 8, 6))
        k = k / k.norm(dim=-1, keepdim=True)
        g, beta = -torch.rand(2, 3, length, dtype=torch.float64), torch.rand(2, 3, length, dtype=torch.float64)
        g[:, :, 70] = -30
        state, expected = torch.zeros(2, 3, 8, 6, dtype=torch.float64), []
        for t in range(length):
            state = state * g[:, :, t, None, None].exp()
            known = (k[:, :, t, None] @ state)[:, :, 0]
            state = state + k[:, :, t, :, None] * (beta[:, :, t, None] * (v[:, :, t] - known))[:, :, None]
            expected.append((q[:, :, t, None] @ state)[:, :, 0])
        torch.testing.assert_close(delta_rule(q, k, v, g, beta), torch.stack(expected, 2))


@needs("torch")
class HybridTest(unittest.TestCase):
    def model(self):
        import torch

        import export
        from hybrid import HybridConfig

        torch.manual_seed(0)
        model = export.build(HybridConfig(dim=32, kinds=("linear", "full", "linear"), heads=2, head_dim=16, rotary_dim=8,
                                          linear_heads=2, linear_dim=8, ffn_dim=40, context=512))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.add_(torch.randn_like(weight) * (0.3 if weight.dim() < 3 else 0.1))
        return model

    def test_a_packed_document_sees_only_itself(self):
        import torch

        import train

        model = self.model()
        first, second = torch.randint(0, 256, (2, 40))
        first[0] = second[0] = tokenizer.BOS
        row = torch.cat((first, second))[None]
        make, attend = train.DOCUMENT_ATTENTION["dense"]()
        mask = make(row)
        packed = model(row, lambda q, k, v: attend(q, k, v, mask))
        alone = model(second[None])
        torch.testing.assert_close(packed[0, 40:], alone[0], rtol=1e-3, atol=1e-3)
        self.assertGreater((packed[0, 41:] - model(row)[0, 41:]).abs().max().item(), 0.1)

    @needs("transformers", "safetensors")
    def test_transformers_loads_the_folder_and_agrees(self):
        import torch
        from transformers import AutoModelForCausalLM

        import export
        from jobs import LEDGER

        model = self.model()
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        with tempfile.TemporaryDirectory() as folder:
            export.write_folder(model, LEDGER, folder)
            again = export.load(folder)
            theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokens = torch.randint(0, 256, (2, 150))
        with torch.no_grad():
            ours = model.logits(model(tokens))
            torch.testing.assert_close(again.logits(again(tokens)), ours)
            torch.testing.assert_close(theirs(tokens).logits, ours, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    unittest.main()
