"""Tests of the contexts of documents and turns, and of their composition: python3 -m pytest test_context.py (or -m
unittest).

Answers are found here in another way than they are made: by reading the text of the context.
"""

import collections
import json
import re
import struct
import unittest

from testing import GeneratorTestCase, documents_of_rows, mixed_hash, needs  # first: it makes the modules beside it known

import tokenizer

CLASSES = ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "join", "result", "note", "state"]
EDITS = {"drop_unreferenced", "drop_referenced", "summarize", "replace_quoted", "move"}
ROW = 4096


def held_out(context, question, answer):
    """The rule of contexts.h, from the text alone."""
    few = answer == "none" or question in ("Q: last state?",) or question.startswith("Q: documents with")
    return mixed_hash((context if few else "") + question + "\n" + answer) % 10 == 0


def read_documents(documents):
    """{(name, attribute): (value, how it was told, document)} and {word: documents that say it}."""
    facts, seen, before = {}, collections.Counter(), None
    for number, document in enumerate(documents):
        subject = last = None
        for place, sentence in enumerate(document.rstrip("\n").removesuffix(".").split(". ")):
            if sentence.startswith("Seen: "):
                seen[sentence[6:]] += 1
                continue
            words = sentence.split()
            attribute, value = words[-2:]
            opening = " ".join(words[:-2])
            if opening == "It also has":
                assert place == 0
                key, told = (before, attribute), "Q3"
            elif opening == "The one before has":
                key, told = (before, attribute), "Q4"
            elif opening.endswith("now has"):
                key, told = (words[0], attribute), "Q6"
                assert key in facts and facts[key][2] < number
            else:
                if opening != "It has":
                    subject = last = words[0]
                key, told = (subject, attribute), "Q1"
            assert key[0] and (told == "Q6" or key not in facts), (documents, sentence)
            facts[key] = (value, told, number)
        before = last
    return facts, seen


def read_turns(turns):
    """{(name, attribute, "result" or "note"): value} and the last state."""
    facts, state = {}, "none"
    for turn in turns:
        if turn[0] == "<":
            name, values = re.fullmatch(r"< (\w+): (.+)\.\n", turn).groups()
            for value in values.split(", "):
                facts[name, value.split()[0], "result"] = value.split()[1]
        elif turn[0] == "#":
            name, attribute, value, state = re.fullmatch(r"# (\w+) (\w+) (\w+), state (\w+)\.\n", turn).groups()
            facts[name, attribute, "note"] = value
    return facts, state


def answer_documents(question, documents):
    """(the answer, the class of a question on one fact)"""
    facts, seen = read_documents(documents)
    if question.startswith("Q: documents with "):
        return str(seen[question[18:-1]]), "Q5"
    found = [facts.get((name, attribute), ("none", "none", None))
             for attribute, name in re.findall(r"(\w+) of (\w+)", question)]
    if len(found) == 2:
        assert found[0][2] != found[1][2] and found[0][1] == found[1][1] == "Q1"
        return f"{found[0][0]}, {found[1][0]}", "Q2"
    return found[0][0], found[0][1]


def answer_turns(question, turns):
    facts, state = read_turns(turns)
    if question == "Q: last state?":
        return state
    attribute, name, about = re.fullmatch(r"Q: (\w+) of (\w+) in (\w+)\?", question).groups()
    return facts.get((name, attribute, about), "none")


class ContextTest(GeneratorTestCase):
    SOURCE = "generate_context.cpp"

    def questions(self, *arguments):
        return [json.loads(line) for line in self.generate("questions", *arguments).splitlines()]

    def rows(self, *arguments):
        """[[(ids, learnt, pieces)] of each document] of each row."""
        for documents in documents_of_rows(self.generate("rows", *arguments), ROW, 0x1FF):
            yield [([v & 0x1FF for v in d], [v >> 15 for v in d], [v >> 9 & 63 for v in d]) for d in documents]

    def test_questions_are_held_out_and_answered_by_their_context(self):
        records = self.questions("--count", 40)
        self.assertEqual(collections.Counter(r["class"] for r in records), {name: 40 for name in CLASSES})
        for record in records:
            question, answer, name = record["question"][:-1], record["answer"], record["class"]
            pieces = record.get("documents") or record["turns"]
            self.assertTrue(all(p.endswith("\n") and p.count("\n") == 1 for p in [record["system"], *pieces]))
            if "documents" in record:
                documents = ([record["common"]] if name == "join" else []) + pieces
                self.assertIn(len(documents), range(2, 17))
                self.assertTrue(all(128 <= len(d) <= 512 for d in documents), [len(d) for d in documents])
                found = answer_documents(question, documents)
                self.assertEqual(found[0], answer)
                self.assertIn(found[1], ("Q1", "Q5") if name == "join" else (name,))
            else:
                documents = pieces
                self.assertIn(len(pieces), range(8, 33))
                self.assertEqual(answer_turns(question, pieces), answer)
                self.assertNotEqual(answer, "none")
            self.assertTrue(held_out(record["system"] + "".join(documents), question, answer))
            self.assertLessEqual(len(answer), 12)

    def test_edits_say_what_is_answered_after_them(self):
        kinds, changed = collections.Counter(), collections.Counter()
        for record in self.questions("--count", 60):
            for edit in record.get("edits", ()):
                turns = [record["turns"][t] if isinstance(t, int) else t for t in edit["turns"]]
                self.assertNotEqual(turns, record["turns"])
                self.assertEqual(answer_turns(record["question"][:-1], turns), edit["answer"])
                kinds[edit["kind"]] += 1
                changed[edit["kind"]] += edit["answer"] != record["answer"]
        self.assertEqual(set(kinds), EDITS)
        self.assertGreater(min(kinds.values()), 150)
        self.assertEqual((changed["drop_unreferenced"], changed["summarize"]), (0, 0))
        self.assertGreater(changed["drop_referenced"], 0.6 * kinds["drop_referenced"])
        self.assertGreater(changed["replace_quoted"], 15)

    def test_training_asks_nothing_that_is_held_out_and_learns_the_answers(self):
        asked = collections.Counter()
        for phase in (1, 2, 3):
            for row in self.rows("--phase", phase, "--blocks", 1, "--seed", phase):
                for ids, learnt, pieces in row:
                    text = tokenizer.decode(ids)
                    lines = text.splitlines(keepends=True)
                    first = next(i for i, line in enumerate(lines) if line.startswith("Q: "))
                    context, answers = lines[:first], [0] * (1 + len("".join(lines[:first])))
                    for question, answer in zip(lines[first::2], lines[first + 1::2]):
                        self.assertFalse(held_out("".join(context), question[:-1], answer[:-1]))
                        answers += [0] * len(question) + [1] * len(answer)
                        if context[0].startswith("Documents"):
                            found, name = answer_documents(question[:-1], context[1:])
                        else:
                            found, name = answer_turns(question[:-1], context[1:]), "turns"
                        self.assertEqual(found + "\n", answer)
                        asked[name] += 1
                    self.assertEqual(learnt, answers)
                    self.assertEqual(set(pieces), {0})
                    self.assertEqual(len(set(lines[first::2])), len(lines[first::2]))
        self.assertEqual(set(asked), {"Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "none", "turns"})
        self.assertGreater(min(asked.values()), 0.02 * sum(asked.values()))

    def test_pieces_are_lines_and_half_of_the_contexts_have_them(self):
        alone = total = 0
        for row in self.rows("--phase", 2, "--blocks", 2, "--alone", 0.5):
            for ids, _, pieces in row:
                lines = tokenizer.decode(ids).splitlines(keepends=True)
                if not lines[0].startswith("Documents"):
                    self.assertEqual(set(pieces), {0})
                    continue
                total += 1
                if set(pieces) == {0}:
                    continue
                alone += 1
                starts_at, expected = 1 + len(lines[0]), None
                self.assertEqual(set(pieces[:starts_at]), {0})
                for line in lines[1:]:
                    own = set(pieces[starts_at:starts_at + len(line)])
                    self.assertEqual(len(own), 1)
                    if 63 in own:
                        self.assertEqual(set(pieces[starts_at:]), {63})
                        break
                    # In joins the common document is 0.
                    self.assertIn(own.pop(), (0, 1) if expected is None else (expected,))
                    expected = pieces[starts_at] + 1
                    starts_at += len(line)
        self.assertAlmostEqual(alone / total, 0.5, delta=4 * (0.25 / total) ** 0.5)

    def test_the_stream_depends_on_the_seed_alone(self):
        data = self.generate("rows", "--blocks", 3, "--threads", 1)
        self.assertEqual(data, self.generate("rows", "--blocks", 3, "--threads", 3))
        self.assertNotEqual(data, self.generate("rows", "--blocks", 3, "--seed", 2))
        padding = sum(v & 0x1FF == tokenizer.PAD for v in struct.unpack(f"<{len(data) // 2}H", data))
        self.assertLess(padding / (len(data) / 2), 0.05)
        self.assertEqual(self.generate("questions", "--count", 3), self.generate("questions", "--count", 3))

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, name in ((["rows", "--phase", "4"], "--phase"), (["questions", "--most", "3"], "--most"),
                                (["docs", "--alone", "1"], "--alone"), ([], "usage")):
            self.assert_refuses(arguments, name)


@needs("torch", "safetensors")
class CompositionTest(unittest.TestCase):
    SYSTEM, QUESTION = "Documents of case 1.\n", "Q: code of Belna?\n"
    DOCUMENTS = ["Belna has code 47.\n", "It also has size 12. Torvik has tree oak.\n", "Dovra has code 31.\n"]

    def setUp(self):
        import torch
        from model import Config, Llama
        torch.manual_seed(0)
        self.torch = torch
        self.model = Llama(Config(dim=32, layers=3, heads=2, kv_heads=1, head_dim=16, ffn_dim=48, context=256, qk_norm=True))
        with torch.no_grad():
            self.model.embedding.mul_(30)  # so that attention is not flat
            self.model.q_norm.uniform_(0.5, 2)
            self.model.k_norm.uniform_(0.5, 2)
        self.system = [tokenizer.BOS] + tokenizer.encode(self.SYSTEM)
        self.documents = [tokenizer.encode(d) for d in self.DOCUMENTS]
        self.question = tokenizer.encode(self.QUESTION)

    def composed(self, **options):
        from compose import compose_logits
        return compose_logits(self.model, self.system, self.documents, self.question, **options)

    def full(self):
        ids = self.torch.tensor([self.system + sum(self.documents, []) + self.question])
        with self.torch.no_grad():
            return self.model.logits(self.model(ids))[0, -len(self.question):]

    def test_repairing_all_is_computing_all(self):
        for left in (None, [], [tokenizer.BOS] * 4):
            self.torch.testing.assert_close(self.composed(first=99, left=left), self.full(), rtol=1e-4, atol=1e-4)
        self.torch.testing.assert_close(self.composed(last=99), self.full(), rtol=1e-4, atol=1e-4)

    def test_repair_changes_the_result(self):
        results = [self.composed(), self.composed(first=4), self.composed(last=4), self.composed(left=[]), self.full()]
        for i, a in enumerate(results):
            for b in results[i + 1:]:
                self.assertGreater((a - b).abs().max().item(), 1e-3)

    def test_unrepaired_is_what_a_mask_of_pieces_gives(self):
        """Where documents do not see the system line: a mask leaves that at another distance than a composition."""
        import train
        from rows import PIECE_SHIFT, SEES_ALL
        row = []
        for number, document in enumerate([self.system, *self.documents], 1):
            row += [i | number << PIECE_SHIFT for i in document]
        row += [i | SEES_ALL << PIECE_SHIFT for i in self.question]
        packed = self.torch.tensor([row])
        make_mask, attend = train.DOCUMENT_ATTENTION["dense"](pieces=True)
        mask = make_mask(packed)
        with self.torch.no_grad():
            hidden = self.model(packed & 0x1FF, lambda q, k, v: attend(q, k, v, mask))
        masked = self.model.logits(hidden)[0, -len(self.question):]
        self.torch.testing.assert_close(self.composed(left=[]), masked, rtol=1e-4, atol=1e-4)

    def test_heads_are_normed_before_they_are_rotated(self):
        """So the size of what is projected does not matter, and a moved key is that of the new position."""
        before = self.full()
        with self.torch.no_grad():
            self.model.q.mul_(3)
            self.model.k.mul_(5)
        self.torch.testing.assert_close(self.full(), before, rtol=1e-4, atol=1e-3)
        with self.torch.no_grad():
            self.model.k_norm.mul_(2)
        self.assertGreater((self.full() - before).abs().max().item(), 1e-2)

    def test_folder_says_which_norms_there_are(self):
        import tempfile
        import export
        from jobs import JOBS
        with tempfile.TemporaryDirectory() as folder:
            export.write_folder(self.model, JOBS["dendrite-compose"], folder)
            read = export.load(folder)
        self.assertEqual(read.config, self.model.config)
        self.torch.testing.assert_close(read.k_norm, self.model.k_norm.to(self.torch.bfloat16).float())

    def test_moved_keys_are_those_of_the_new_position(self):
        from compose import keys_and_values, moved
        ids = self.documents[0]
        old, new = self.torch.arange(len(ids)), self.torch.arange(len(ids)) + 100
        with self.torch.no_grad():
            there = keys_and_values(self.model, ids)[0][0]
            stored = []

            def attention(q, k, v):
                stored.append(k)
                return q

            self.model(self.torch.tensor([ids]), attention, positions=new)
        # The first layer's K does not depend on what is before.
        self.torch.testing.assert_close(moved(self.model, there, old, new), stored[0], rtol=1e-4, atol=1e-5)

    def test_text_weighs_little_and_what_is_no_text_nothing(self):
        import train
        ids = [tokenizer.BOS] + tokenizer.encode("Q: a?\n") + [i - 0x8000 for i in tokenizer.encode("4\n")]
        packed = self.torch.tensor([ids + [tokenizer.BOS] + tokenizer.encode("b") + [tokenizer.PAD] * 2])
        weights = train.unpack(packed.to(self.torch.int16), None, 0.25)[2][0]
        self.assertEqual(weights.tolist(), [0.25] * 6 + [1, 1] + [0, 0.25] + [0] * 3)

    def test_answers_are_judged_to_their_newline(self):
        import evaluate_context
        records = [{"system": self.SYSTEM, "documents": self.DOCUMENTS, "question": self.QUESTION, "answer": a}
                   for a in ("47", "123456789")]
        row = evaluate_context.packed(records[0])
        self.assertEqual(tokenizer.decode([i & 0x1FF for i in row if i < 0]), "47\n")
        for alone in (False, True):
            self.assertEqual(evaluate_context.right_answers(self.model, records, alone), [False, False])


if __name__ == "__main__":
    unittest.main()
