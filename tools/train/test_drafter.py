"""Tests of the block drafter and its training: python3 -m pytest test_drafter.py (or -m unittest).

Seconds on a CPU; without torch and safetensors everything but drafts and trees is skipped. The goldens of tests/data
are numpy's, from the formulas (tools/golden/drafters).
"""

import itertools
import json
import pathlib
import random
import sys
import tempfile
import unittest
import warnings
from unittest import mock

from testing import MODELS, needs  # first: it makes the modules beside it known

import drafting
import tokenizer

DATA = MODELS.parent / "tests" / "data"


class DraftingTest(unittest.TestCase):
    def places(self, seed=0, depth=4, width=3):
        rng = random.Random(seed)
        return [list(enumerate(sorted((-rng.random() * 3 for _ in range(width)), reverse=True))) for _ in range(depth)]

    def paths(self, nodes):
        paths = []
        for token, parent, _ in nodes:
            paths.append((paths[parent] if parent >= 0 else ()) + (token,))
        return paths

    def test_a_tree_has_the_likeliest_prefixes(self):
        for seed, budget in itertools.product(range(20), (1, 5, 16)):
            places = self.places(seed)
            score = lambda path: sum(dict(place)[token] for place, token in zip(places, path))
            every = [path for depth in range(1, 5) for path in itertools.product(range(3), repeat=depth)]
            best = sorted(every, key=score, reverse=True)[:budget]
            self.assertEqual(set(self.paths(drafting.best_tree(places, budget))), set(best))

    def test_a_text_is_followed_as_far_as_the_tree_goes(self):
        places = self.places()
        self.assertEqual(drafting.follow(drafting.chain(places), [0, 0, 1, 0]), [0, 0])
        nodes = drafting.best_tree(places, 120)
        self.assertEqual(drafting.follow(nodes, [1, 0, 2, 2, 0]), [1, 0, 2, 2])
        self.assertEqual(drafting.follow(nodes, [3, 0]), [])

    def test_rounds_add_up_to_the_text(self):
        text = [0, 0, 0, 1, 0, 0, 2]
        tally = drafting.Tally(3)
        tally.walk(text, lambda i: [(0, -1, 0), (0, 0, 0), (1, 0, 1)])
        # After text[0]: 0 0, and 1 beside. After text[3], 1: 0 0, and 2 beside.
        report = tally.report()
        self.assertEqual((report["rounds"], tally.tokens, tally.accepted, tally.siblings), (2, len(text) - 1, 4, 0))
        self.assertEqual((tally.tried, tally.right), ([2, 2, 2], [2, 2, 0]))
        tally = drafting.Tally(3)
        tally.walk([5, 0, 1, 0], lambda i: [(0, -1, 0), (0, 0, 0), (1, 0, 1)])
        self.assertEqual((tally.rounds, tally.tokens, tally.siblings, tally.sibling_rounds), (1, 3, 1, 1))


def random_drafter(seed=0, **changes):
    """A tiny one, whose norms are not all ones."""
    import torch
    from drafter import Drafter, DrafterConfig
    torch.manual_seed(seed)
    config = DrafterConfig(**{**dict(dim=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn_dim=48, block_size=4,
                                     taps=(0, 1), target_layers=2, rope_theta=1000.0), **changes})
    drafter = Drafter(config)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if "norm" in name:
                weight.mul_(1 + 0.3 * torch.randn_like(weight))
            else:
                weight.mul_(3)
    return drafter


def random_target():
    from model import Config, Llama
    return Llama(Config(dim=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn_dim=48))


def packed_row(parts, length):
    """(tokens, learnt) [1, length] of documents, each a list of ids of which those from the third on are learnt."""
    import torch
    ids = [i for part in parts for i in (tokenizer.BOS, *part)]
    learnt = [place > 2 for part in parts for place in range(len(part) + 1)]
    pad = length - len(ids)
    return (torch.tensor([ids + [tokenizer.PAD] * pad]), torch.tensor([learnt + [False] * pad]))


@needs("torch", "safetensors")
class DrafterTest(unittest.TestCase):
    A, B, C = list(range(10, 30)), list(range(40, 52)), list(range(60, 75))

    def logits(self, drafter, target, tokens, anchors, attention="dense"):
        """Of the masks of blocks at `anchors` in one packed row: [blocks, block_size - 1, vocab]."""
        import torch
        import blocks
        import train
        make_document_mask, attend = train.DOCUMENT_ATTENTION["dense"]()
        seen = make_document_mask(tokens)
        features, _ = blocks.tapped(target, drafter.config.taps, tokens, lambda q, k, v: attend(q, k, v, seen))
        anchors = torch.tensor([anchors])
        make_mask, attend_blocks = blocks.BLOCK_ATTENTION[attention]()
        mask = make_mask(tokens, anchors, drafter.config.block_size)
        with torch.no_grad():
            return blocks.block_logits(drafter, target.embedding, features, tokens, anchors,
                                       lambda q, k, v: attend_blocks(q, k, v, mask))[0, :, 1:]

    @needs("numpy")
    def test_logits_are_those_of_the_formulas_in_numpy(self):
        """The same reference that the engine's goldens are from."""
        import numpy
        import torch
        import drafter as block_drafter
        sys.path.insert(0, str(MODELS.parent / "tools/golden/drafters"))
        import reference
        drafter, target = random_drafter(block_size=5), random_target()
        as_numpy = lambda named: {name: w.detach().double().numpy() for name, w in named}
        target_config = {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "head_dim": 16, "num_hidden_layers": 2}
        own = block_drafter.config_json(drafter.config)
        ids = [tokenizer.BOS] + self.A
        for anchor in (1, 7, len(ids) - 1):
            expected = reference.draft(numpy.array(ids), anchor, target_config, as_numpy(target.named_weights()), own,
                                       as_numpy(drafter.named_weights()), list(drafter.config.taps))
            got = self.logits(drafter, target, torch.tensor([ids]), [anchor])[0]
            torch.testing.assert_close(got.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)

    def test_packed_blocks_are_those_of_single_documents(self):
        import torch
        drafter, target = random_drafter(), random_target()
        tokens, _ = packed_row([self.A, self.B, self.C], 64)
        starts = [0, len(self.A) + 1, len(self.A) + len(self.B) + 2]
        anchors = [3, 9, starts[1] + 1, starts[1] + 12, starts[2] + 4]
        together = self.logits(drafter, target, tokens, anchors)
        for got, anchor in zip(together, anchors):
            start, part = max((s, p) for s, p in zip(starts, (self.A, self.B, self.C)) if s <= anchor)
            alone = self.logits(drafter, target, torch.tensor([[tokenizer.BOS, *part]]), [anchor - start])[0]
            torch.testing.assert_close(got, alone, rtol=1e-4, atol=1e-4)

    def test_the_kernel_is_told_what_the_plain_mask_says(self):
        import torch
        import train  # noqa: F401  Compiles what it imports.
        drafter, target = random_drafter(), random_target()
        tokens, _ = packed_row([self.A, self.B, self.C], 64)
        anchors = [3, 9, 22, 33, 40, 2, 21, 36]
        with mock.patch.object(torch, "compile", lambda f, **_: f), warnings.catch_warnings(action="ignore"):
            by_kernel = self.logits(drafter, target, tokens, anchors, "flex")
        torch.testing.assert_close(by_kernel, self.logits(drafter, target, tokens, anchors), rtol=1e-4, atol=1e-4)

    def test_a_block_sees_its_documents_tokens_up_to_its_anchor_and_nothing_else(self):
        import torch
        drafter, target = random_drafter(), random_target()
        tokens, _ = packed_row([self.A, self.B, self.C], 64)
        start, anchor = len(self.A) + 1, len(self.A) + 7
        before = self.logits(drafter, target, tokens, [anchor])
        for place in range(1, 48):
            if tokens[0, place] == tokenizer.BOS:
                continue
            changed = tokens.clone()
            changed[0, place] = 200
            moved = (self.logits(drafter, target, changed, [anchor]) - before).abs().amax(dim=(0, 2))
            if start <= place <= anchor:
                self.assertGreater(moved.min().item(), 1e-5, place)
            else:
                self.assertEqual(moved.max().item(), 0, place)

    def test_rows_of_a_block_see_masks_on_both_sides(self):
        """With a block one mask longer, all rows say something else."""
        short, target = random_drafter(), random_target()
        long = random_drafter(block_size=5)
        long.load_state_dict(short.state_dict())
        tokens, _ = packed_row([self.A], 64)
        a, b = (self.logits(d, target, tokens, [6])[0] for d in (short, long))
        self.assertGreater((a - b[:3]).abs().amax(dim=1).min().item(), 1e-5)

    def test_anchors_stand_before_learnt_tokens(self):
        import torch
        import blocks
        torch.manual_seed(0)
        tokens, learnt = packed_row([self.A, self.B[:3]], 64)
        rows = 200
        anchors, valid = blocks.choose_anchors(learnt.expand(rows, -1).clone(), 8)
        second = len(self.A) + 1
        fit = {*range(2, len(self.A)), second + 2}
        self.assertTrue(valid.all())
        self.assertEqual(set(anchors.flatten().tolist()), fit)
        self.assertTrue(all(len(set(row)) == 8 for row in anchors.tolist()))
        _, valid = blocks.choose_anchors(packed_row([self.B[:5]], 64)[1], 8)
        self.assertEqual(valid.sum().item(), 3)

    def test_loss_weights_decay_and_end_with_the_document(self):
        import torch
        import blocks
        config = random_drafter(block_size=6).config
        tokens, learnt = packed_row([self.A, self.B], 36)
        end, last = len(self.A) + 1, len(self.A) + 1 + len(self.B)  # of A; B's last token
        anchors, valid = torch.tensor([[4, end - 2, last - 2, 1, 5]]), torch.tensor([[True, True, True, True, False]])
        wanted, weights = blocks.labels(tokens, learnt, anchors, valid, config, 7.0)
        wanted, weights = (x.view(5, 6) for x in (wanted, weights))
        decay = torch.exp(-torch.arange(5) / 7.0)
        torch.testing.assert_close(weights[0], torch.cat((torch.zeros(1), decay)))
        self.assertEqual(wanted[0].tolist(), tokens[0, 4:10].tolist())
        for i, expected in ((1, [0, 1, 0, 0, 0, 0]), (2, [0, 1, 1, 0, 0, 0]), (3, [0, 0, 1, 1, 1, 1]), (4, [0] * 6)):
            self.assertEqual((weights[i] > 0).int().tolist(), expected, i)

    def test_own_text_is_what_the_model_writes(self):
        import torch
        import export
        import own_text
        from decoding import Decoder
        target = export.load(MODELS / "dendrite-24")
        heads = ["S 24: 4 5 6 10\n", "P 24: 1 2 3 4\n", "S 30: 3 10 11\n", "S 24: 2 3\n"]
        row = []
        for text in heads:
            row += [tokenizer.BOS, *tokenizer.encode(text)] + [t | 0x8000 for t in tokenizer.encode("10-4=6")]
        row += [tokenizer.PAD] * (256 - len(row))
        prompts, first = own_text.prompts_of(torch.tensor([row]).to(torch.int16))
        texts = own_text.continue_greedily(target, prompts, first)
        asked = [text for text in heads if text[0] == "S"]
        expected, lengths = Decoder(target).complete(asked, own_text.TEXT_TOKENS - own_text.PROMPT_TOKENS)
        for ids, start, head, text, length in zip(texts.tolist(), first.tolist(), asked, expected, lengths):
            self.assertEqual(ids[:start], [tokenizer.PAD] * start)
            self.assertEqual(ids[start:own_text.PROMPT_TOKENS], [tokenizer.BOS, *tokenizer.encode(head)])
            written = ids[own_text.PROMPT_TOKENS:]
            self.assertEqual(tokenizer.decode(written[:length]), text)
            self.assertTrue(all(t == tokenizer.PAD for t in written[length:]))

    def test_a_lot_of_own_text_is_rows_that_learn_what_was_written(self):
        import torch
        import export
        import own_text

        class Prompts:
            def next(self):
                ids = [tokenizer.BOS, *tokenizer.encode("S 24: 4 5 6 10\n")]
                return torch.tensor([ids + [0x8000 | 15] + [tokenizer.PAD] * (255 - len(ids))]).to(torch.int16)

        rows = own_text.OwnText(export.load(MODELS / "dendrite-24"), Prompts(), 2, batches=1).next()
        self.assertEqual(rows.shape, (2, 256))
        tokens, learnt = rows[0].long() & 0x7FFF, rows[0] < 0
        said = tokenizer.decode(tokens[learnt].tolist())
        self.assertTrue(said.endswith("ok\n"), said)
        self.assertEqual((tokens[learnt] == tokenizer.EOS).sum().item(), 2)

    def test_a_folder_has_all_that_a_loader_asks_for_and_loads_to_the_same(self):
        import torch
        import drafter as block_drafter
        from safetensors.torch import load_file
        drafter, target = random_drafter(), random_target()
        with torch.no_grad():
            for weight in drafter.parameters():
                weight.copy_(weight.bfloat16())
        with tempfile.TemporaryDirectory() as folder:
            block_drafter.write_folder(drafter, folder)
            config = json.loads((pathlib.Path(folder) / "config.json").read_text())
            names = load_file(pathlib.Path(folder) / "model.safetensors")
            again = block_drafter.load(folder)
        self.assertEqual(again.config, drafter.config)
        for key, value in {"architectures": ["DFlashDraftModel"], "hidden_size": 32, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
                           "block_size": 4, "num_target_layers": 2, "rope_theta": 1000.0, "rms_norm_eps": 1e-6,
                           "layer_types": ["full_attention"] * 2,
                           "dflash_config": {"mask_token_id": 319, "target_layer_ids": [0, 1]}}.items():
            self.assertEqual(config[key], value, key)
        golden = load_file(DATA / "drafters/qwen3_full/model.safetensors")  # two layers, too
        self.assertEqual(set(names), set(golden))
        self.assertTrue(all(w.dtype == torch.bfloat16 for w in names.values()))
        tokens, _ = packed_row([self.A], 32)
        torch.testing.assert_close(self.logits(again, target, tokens, [5]), self.logits(drafter, target, tokens, [5]),
                                   rtol=0, atol=0)

    def test_measured_places_are_those_of_single_blocks(self):
        import torch
        import evaluate_drafter
        drafter, target = random_drafter(), random_target()
        texts = [[tokenizer.BOS, *self.A], [tokenizer.BOS, *self.C]]
        tokens = torch.tensor([t + [tokenizer.PAD] * (24 - len(t)) for t in texts])
        ends = [len(t) for t in texts]
        places = evaluate_drafter.likeliest(target, drafter, tokens, [3, 4], ends)
        self.assertEqual([len(p) for p in places], [ends[0] - 3, ends[1] - 4])
        for text, begin, of_text in zip(texts, (3, 4), places):
            for i, block in enumerate(of_text):
                alone = self.logits(drafter, target, torch.tensor([text]), [begin + i])[0].log_softmax(dim=-1)
                for place, row in zip(evaluate_drafter.as_lists(block), alone):
                    self.assertEqual(place[0][0], row.argmax().item())
                    self.assertAlmostEqual(place[0][1], row.max().item(), places=4)


if __name__ == "__main__":
    unittest.main()
