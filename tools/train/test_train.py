"""Tests of the data generator, the tokenizer and the model code: python3 -m pytest test_train.py (or -m unittest).

The generator is held against a brute force written here in another way: by sets of reachable values, with pairs taken
by position. Runs in seconds on a CPU; parts that need torch, transformers or jinja2 are skipped without them.
"""

import functools
import itertools
import math
import random
import struct
import unittest

from testing import MODELS, GeneratorTestCase, needs  # first: it makes the modules beside it known

import puzzle
import tokenizer

MODEL = MODELS / "dendrite-24"
TASKS = ("game24", "game24wide", "countdown3", "countdown4", "countdown5")


# ---- brute force, independent of puzzle.h and puzzle.py ----

def results(a, b):
    big, small = max(a, b), min(a, b)
    out = {("+", big + small), ("-", big - small), ("*", big * small)}
    if math.gcd(big, small) == small:
        out.add(("/", big // small))
    return {(op, r) for op, r in out if 0 < r < 1000}


@functools.lru_cache(maxsize=None)
def reachable(numbers):
    """All values that a sorted tuple of numbers can be reduced to."""
    if len(numbers) == 1:
        return frozenset(numbers)
    values = set()
    for a, b in itertools.combinations(range(len(numbers)), 2):
        rest = [n for i, n in enumerate(numbers) if i not in (a, b)]
        for _, r in results(numbers[a], numbers[b]):
            values |= reachable(tuple(sorted(rest + [r])))
    return frozenset(values)


def lines_of(numbers):
    lines = set()
    for a, b in itertools.combinations(range(len(numbers)), 2):
        rest = [n for i, n in enumerate(numbers) if i not in (a, b)]
        big, small = max(numbers[a], numbers[b]), min(numbers[a], numbers[b])
        for op, r in results(big, small):
            lines.add(f"{big}{op}{small}={r} | " + " ".join(str(n) for n in sorted(rest + [r])))
    return lines


def state_after(line):
    return tuple(int(n) for n in line.split(" | ")[1].split())


class GeneratorTest(GeneratorTestCase):
    SOURCE = "generate.cpp"

    def documents(self, task, mode, count, split="train", seed=1):
        """(header fields, lines after it, what is learnt, ends) of each document."""
        for body, learnt, ends in self.documents_of("--task", task, "--mode", mode, "--count", count, "--split", split,
                                                    "--seed", seed):
            self.assertTrue(body.endswith("\n"))
            head, *lines = body[:-1].split("\n")
            yield puzzle.parse_header(head), lines, learnt, ends

    def walk(self, numbers, lines):
        """Follows legal lines; any other fails."""
        for line in lines:
            self.assertIn(line, lines_of(numbers))
            numbers = state_after(line)
        return numbers

    def test_held_out_list_is_what_the_rule_gives(self):
        listed = [line for line in (MODEL / "game24_heldout.txt").read_text().splitlines() if line[0] != "#"]
        self.assertEqual(self.generate("game24-heldout").decode().splitlines(), listed)
        self.assertEqual((len(listed), sum(line[0] == "1" for line in listed)), (383, 269))
        for line in listed:
            flag, *numbers = map(int, line.split())
            self.assertTrue(puzzle.held_out(tuple(numbers), 24))
            self.assertEqual(24 in reachable(tuple(numbers)), flag == 1)

    def test_no_training_root_is_held_out(self):
        games = {tuple(map(int, line.split()[1:]))
                 for line in (MODEL / "game24_heldout.txt").read_text().splitlines() if line[0] != "#"}
        for task, mode in itertools.product(TASKS, "SPJE"):
            for (_, target, numbers), *_ in self.documents(task, mode, 1500):
                self.assertEqual(numbers, tuple(sorted(numbers)))
                self.assertFalse(puzzle.held_out(numbers, target), (task, mode, numbers, target))
                self.assertFalse(target == 24 and numbers in games)

    def test_held_out_documents_come_from_the_other_side(self):
        for task, mode in itertools.product(TASKS, "SPJE"):
            for (_, target, numbers), *_ in self.documents(task, mode, 50, split="heldout"):
                self.assertTrue(puzzle.held_out(numbers, target))

    def test_countdown_lists_are_held_out_and_solvable(self):
        for n in (3, 4, 5):
            puzzles = puzzle.read_countdown(MODEL / f"countdown{n}_heldout.txt")
            self.assertEqual(len(puzzles), len(set(puzzles)))
            for numbers, target in puzzles:
                self.assertTrue(puzzle.held_out(numbers, target))
            for numbers, target in puzzles[:20]:
                self.assertIn(target, reachable(numbers))

    def test_solutions_are_legal_and_reach_the_target(self):
        for task in TASKS:
            for (mode, target, numbers), lines, learnt, ends in self.documents(task, "S", 300):
                self.assertEqual((mode, lines[-1], ends), ("S", "ok", True))
                self.assertEqual(len(lines), len(numbers))
                self.assertEqual(self.walk(numbers, lines[:-1]), (target,))
                self.assertEqual(learnt, "\n".join(lines) + "\n")

    def test_proposals_are_legal_and_learn_the_last_line_only(self):
        for task in TASKS:
            depths = set()
            for (mode, _, numbers), lines, learnt, ends in self.documents(task, "P", 300):
                self.assertEqual((mode, ends), ("P", False))
                self.walk(numbers, lines)
                self.assertEqual(learnt, lines[-1] + "\n")
                depths.add(len(lines))
            self.assertEqual(depths, set(range(1, len(numbers))))

    def test_proposals_are_uniform(self):
        """The place of the move among the sorted legal ones, as a share of them (spread out at random within its own
        share, so that short lists do not make steps), is uniform."""
        spread, shares = random.Random(0), []
        for (_, _, numbers), lines, _, _ in self.documents("game24", "P", 4000):
            before = self.walk(numbers, lines[:-1])
            legal = sorted(lines_of(before))
            shares.append((legal.index(lines[-1]) + spread.random()) / len(legal))
        self.assertAlmostEqual(sum(shares) / len(shares), 0.5, delta=4 * (1 / 12 / len(shares)) ** 0.5)
        for tenth in range(10):
            inside = sum(tenth / 10 <= s < (tenth + 1) / 10 for s in shares) / len(shares)
            self.assertAlmostEqual(inside, 0.1, delta=4 * (0.09 / len(shares)) ** 0.5)

    def test_judge_labels_are_exact_and_balanced(self):
        for task in TASKS:
            count = 60 if task == "countdown5" else 400  # the brute force is slow for five numbers
            sure = 0
            for (mode, target, numbers), lines, learnt, ends in self.documents(task, "J", count):
                self.assertEqual((mode, ends), ("P", True))
                state = self.walk(numbers, lines[:-1])
                label = "?sure" if target in reachable(state) else "?impossible"
                self.assertEqual(lines[-1], label)
                self.assertEqual(learnt, label[1:] + "\n")
                sure += label == "?sure"
            self.assertAlmostEqual(sure / count, 0.5, delta=4 * 0.5 / count ** 0.5)

    def test_lists_hold_every_move_once_in_canonical_order(self):
        for task in TASKS:
            for (mode, _, numbers), lines, learnt, ends in self.documents(task, "E", 200):
                self.assertEqual((mode, lines[-1], ends), ("E", ".", True))
                self.assertEqual(lines[:-1], list(puzzle.legal_lines(numbers)))
                self.assertEqual(set(lines[:-1]), lines_of(numbers))
                self.assertEqual(learnt, "\n".join(lines) + "\n")
        self.assertEqual(next(iter(puzzle.legal_lines((5, 6, 6)))), "6+5=11 | 6 11")

    def test_rows_are_whole_documents_and_do_not_depend_on_threads(self):
        for phase in (1, 2, 3):
            data = self.generate("rows", "--phase", phase, "--blocks", 3, "--threads", 1)
            self.assertEqual(data, self.generate("rows", "--phase", phase, "--blocks", 3, "--threads", 3))
            self.assertNotEqual(data, self.generate("rows", "--phase", phase, "--blocks", 3, "--seed", 2))
            packed = struct.unpack(f"<{len(data) // 2}H", data)
            padding = 0
            for at in range(0, len(packed), 256):
                row = packed[at:at + 256]
                padding += sum(t == tokenizer.PAD for t in row)
                self.check_row([t & 0x7FFF for t in row], [t >> 15 for t in row])
            self.assertLess(padding / len(packed), 0.04)

    def check_row(self, tokens, learnt):
        self.assertEqual(tokens[0], tokenizer.BOS)
        starts = [i for i, t in enumerate(tokens) if t == tokenizer.BOS] + [len(tokens)]
        for begin, end in zip(starts, starts[1:]):
            ids = [t for t in tokens[begin + 1:end] if t != tokenizer.PAD]
            text = tokenizer.decode(ids)
            head = text.split("\n")[0]
            mode, target, numbers = puzzle.parse_header(head)
            self.assertFalse(puzzle.held_out(numbers, target))
            self.assertTrue(text.endswith("\n"))
            self.assertEqual(ids[-1] == tokenizer.EOS, mode != "P" or "?" in text)
            if mode != "P":
                expected = len(head) + 1
            elif "?" in text:
                expected = text.index("?") + 1
            else:
                expected = text[:-1].rindex("\n") + 1
            flags = learnt[begin + 1:begin + 1 + len(ids)]
            self.assertEqual(flags, [0] * expected + [1] * (len(ids) - expected))

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, name in ((["docs", "--mode", "X"], "--mode"), (["rows", "--phase", "9"], "--phase"),
                                (["docs", "--color", "1"], "--color"), (["docs", "--count"], "--count"), ([], "usage")):
            self.assert_refuses(arguments, name)


class CheckerTest(unittest.TestCase):
    def test_only_a_complete_legal_path_is_a_solution(self):
        good = "10-4=6 | 5 6 6\n6*5=30 | 6 30\n30-6=24 | 24\nok\n"
        self.assertTrue(puzzle.is_solution((4, 5, 6, 10), 24, good))
        for bad in (good.replace("10-4=6", "10-5=6"), good.replace("| 5 6 6", "| 6 5 6"), good.replace("30-6", "6-30"),
                    good.replace("6 30\n", "6 29\n"), good[:30], "", "24 | 24\n" * 3, good.replace(" | 24", " | 25")):
            self.assertFalse(puzzle.is_solution((4, 5, 6, 10), 24, bad), bad)

    def test_wilson_interval(self):
        for got, expected in zip(puzzle.wilson(8, 10), (80.0, 49.02, 94.33)):
            self.assertAlmostEqual(got, expected, places=1)
        self.assertEqual(puzzle.wilson(0, 50)[1], 0.0)


class TokenizerTest(unittest.TestCase):
    def test_bytes_round_trip_and_ids_are_the_alphabet(self):
        text = "S 24: 4 5 6 10\nhéllo \x00\t日本"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)
        self.assertEqual(sorted(tokenizer.ID_OF_BYTE), list(range(256)))
        self.assertEqual(tokenizer.encode("!"), [0])
        self.assertEqual(tokenizer.encode("0? \n"), [15, 30, 220, 198])  # as in GPT-2's own vocabulary
        self.assertEqual((tokenizer.BOS, tokenizer.EOS, tokenizer.PAD, tokenizer.CALL, tokenizer.END),
                         (256, 257, 258, 259, 260))
        self.assertEqual(len(set(tokenizer.special_tokens())), 64)
        named = tokenizer.special_tokens([(tokenizer.RESULT, "<|result|>")])
        self.assertEqual((named[5], named[6:]), ("<|result|>", tokenizer.special_tokens()[6:]))

    @needs("tokenizers")
    def test_shipped_file_agrees(self):
        from tokenizers import Tokenizer
        shipped = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        text = "P 24: 4 5 6 10\n6*4=24 | 5 10 24\n?é\x00"
        self.assertEqual(shipped.encode(text).ids, [256] + tokenizer.encode(text))
        self.assertEqual(shipped.encode(text, add_special_tokens=False).ids, tokenizer.encode(text))
        self.assertEqual(shipped.decode(tokenizer.encode(text)), text)
        self.assertEqual(shipped.encode("<|eos|>", add_special_tokens=False).ids, [257])
        self.assertEqual(shipped.get_vocab_size(), 320)

    @needs("jinja2")
    def test_chat_template_renders_the_header(self):
        import jinja2
        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
            (MODEL / "chat_template.jinja").read_text())

        def render(content, **extra):
            return template.render(messages=[{"role": "user", "content": content}], bos_token="<|bos|>", **extra)

        self.assertEqual(render("24: 10 4 6 5"), "<|bos|>S 24: 4 5 6 10\n")
        self.assertEqual(render("10 4 6 5"), "<|bos|>S 24: 4 5 6 10\n")
        self.assertEqual(render("65: 3 15 4 8 13", mode="P"), "<|bos|>P 65: 3 4 8 13 15\n")
        self.assertEqual(render("E 24: 5 6 6"), "<|bos|>E 24: 5 6 6\n")


@needs("torch", "safetensors")
class ModelTest(unittest.TestCase):
    def test_a_packed_document_sees_only_itself(self):
        import torch
        import train
        from model import Config, Llama
        torch.manual_seed(0)
        model = Llama(Config(dim=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn_dim=48))
        a, b = ([tokenizer.BOS] + tokenizer.encode(t) for t in ("S 24: 4 5 6 10\n", "P 30: 1 2 3\n"))
        make_mask, attend = train.DOCUMENT_ATTENTION["dense"]()
        packed = torch.tensor([a + b])
        mask = make_mask(packed)
        together = model(packed, lambda q, k, v: attend(q, k, v, mask))[0]
        # RoPE is relative, so the second document does not notice where in the row it stands.
        for part, ids in ((together[:len(a)], a), (together[len(a):], b)):
            torch.testing.assert_close(part, model(torch.tensor([ids]))[0], rtol=1e-4, atol=1e-5)

    def test_documents_one_by_one_are_what_a_mask_gives(self):
        import torch
        import train
        torch.manual_seed(0)
        row = [tokenizer.BOS] + [5] * 6 + [tokenizer.BOS] + [7] * 3 + [tokenizer.PAD] * 2
        tokens = torch.tensor([row, row[7:11] + row[:9]])
        q, k, v = (torch.randn(2, heads, len(row), 8) for heads in (4, 2, 2))
        dense, sliced = (attend(q, k, v, make(tokens)) for make, attend in
                         (train.DOCUMENT_ATTENTION[name]() for name in ("dense", "sliced")))
        known = tokens != tokenizer.PAD
        torch.testing.assert_close(sliced.transpose(1, 2)[known], dense.transpose(1, 2)[known])

    def test_learnt_tokens_become_weighted_targets(self):
        import torch
        import train
        text = "P 24: 4 6\n?sure\n"
        ids = [tokenizer.BOS] + tokenizer.encode(text) + [tokenizer.EOS]
        first = text.index("?") + 2  # <|bos|> shifts by one
        row = [t | (0x8000 if i >= first else 0) for i, t in enumerate(ids)] + [tokenizer.PAD] * 3
        packed = torch.tensor([row]).to(torch.int16)
        judge_weight = 4.0
        tokens, targets, weights, judged = train.unpack(packed, judge_weight)
        self.assertEqual(tokens[0].tolist(), [t & 0x7FFF for t in row])
        self.assertEqual([targets[0, i].item() for i in weights[0].nonzero()[:, 0].tolist()], ids[first:])
        self.assertEqual(weights[0, first - 1].item(), judge_weight)
        self.assertEqual(weights[0].sum().item(), judge_weight + len(ids) - first - 1)
        self.assertEqual(judged[0].nonzero()[:, 0].tolist(), [first - 1])
        weights, judged = train.unpack(packed, None)[2:]
        self.assertEqual((weights[0].sum().item(), judged), (len(ids) - first, None))

    def test_muon_steps_are_nearly_orthogonal(self):
        import torch
        from optimizer import orthogonalized
        torch.manual_seed(0)
        for shape in ((2, 24, 16), (2, 16, 24)):
            values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)).float())
            self.assertGreater(values.min().item(), 0.4)
            self.assertLess(values.max().item(), 1.4)

    def test_shipped_model_solves_proposes_and_judges(self):
        import export
        from decoding import Decoder
        decoder = Decoder(export.load(MODEL))
        trunk = "P 24: 4 5 6 10\n"
        lines, _ = decoder.propose([trunk])
        self.assertEqual({line.strip() for line, _ in lines[0]}, lines_of((4, 5, 6, 10)))
        children = [trunk + line for line, _ in lines[0]]
        verdicts = [24 in reachable(state_after(child.split("\n")[1])) for child in children]
        self.assertEqual([value > 0.5 for value in decoder.judge(children)], verdicts)

    @needs("transformers")
    def test_transformers_loads_the_shipped_folders_and_agrees(self):
        import torch
        import export
        from transformers import AutoModelForCausalLM, AutoTokenizer
        for folder, text in ((MODEL, "S 24: 4 5 6 10\n10-4=6 | 5 6 6\n"),
                             (MODELS / "dendrite-tools", "<|call|>Timer 5 minutes\n{\"name\":\"set_timer\","),
                             (MODELS / "dendrite-compose", "Documents of case 1.\nBelna has code 47.\nQ: code of Belna?\n")):
            theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
            ours = export.load(folder)
            self.assertEqual(ids[0, 0].item(), tokenizer.BOS)
            self.assertEqual(theirs.num_parameters(), sum(p.numel() for p in ours.parameters()))
            with torch.no_grad():
                torch.testing.assert_close(ours.logits(ours(ids)), theirs(ids).logits, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
