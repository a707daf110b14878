"""json_test.py DENDRITE_BENCH: --trials counts trials, and --json keeps a sample of each (bench/results/README.md)."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/dendrite-24")
QWEN3 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/models/qwen3")


class Json(unittest.TestCase):
    def run_bench(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.jsonl")
            command = [PROGRAM, *arguments, "--json", path]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        self.assertEqual(len(lines), 1)
        return json.loads(lines[0])

    def test_decode_has_a_sample_a_trial(self):
        run = self.run_bench("decode", "--shape", "tiny", "--threads", "1", "--branches", "1,3",
                             "--prompt-length", "40", "--own", "5", "--output-length", "7", "--trials", "3")
        steps = [row for row in run["rows"] if row["name"] == "step"]
        self.assertEqual([row["params"]["branches"] for row in steps], [1, 3])
        for row in steps:
            self.assertEqual((row["trials"], len(row["samples"])), (3, 3))
            self.assertAlmostEqual(row["median"], statistics.median(row["samples"]), delta=1e-4 * row["median"])
        self.assertEqual([run[key] for key in ("schema", "bench", "side", "model")],
                         [1, "decode", "dendrite", "random-tiny"])
        self.assertEqual(set(run["machine"]), {"gpu", "driver", "cpu", "cores", "id"})
        self.assertRegex(run["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertTrue(run["command"].startswith(os.path.basename(PROGRAM) + " decode --shape tiny"), run["command"])
        self.assertTrue(run["command"].endswith("--trials 3"), run["command"])
        held = {row["params"]["branches"]: row for row in run["rows"] if row["name"] == "memory a branch"}
        for row in held.values():  # GB of K and V, pages that branches share divided among them
            self.assertEqual(row["alone"], held[1]["alone"])
            self.assertAlmostEqual(row["saved"], 1 - row["median"] / row["alone"], delta=1e-4)
        self.assertLess(held[3]["median"], held[1]["median"])
        self.assertEqual(len(run["conditions"]), 2)
        self.assertGreater(run["conditions"][1]["peak_mib"], 0)
        for row in steps:
            self.assertLessEqual(row["median"], row["p90"])
            self.assertLessEqual(row["p90"], row["p99"])

    def test_forks_have_a_row_a_count_and_stand_beside_those_of_a_search(self):
        run = self.run_bench("fork-overhead", "--threads", "1", "--lengths", "16,40", "--depths", "1,3", "--num-forks", "1,8",
                             "--measure-latency", "--trials", "20")
        rows = {}
        for row in run["rows"]:
            rows.setdefault(row["name"], []).append(row)
        for name in ("fork_time_us", "fork_time_us, fork(n)", "first_token_after_fork_ms", "memory_overhead_bytes"):
            self.assertEqual([row["params"]["forks"] for row in rows[name]], [1, 8], name)
        self.assertGreaterEqual(min(row["median"] for row in rows["memory_overhead_bytes"]), 0)  # few take no page of the heap
        for name in ("fork in a search", "fork in a search, first after a step"):
            self.assertEqual((rows[name][0]["params"], len(rows[name][0]["samples"])), ({"branches": 8, "children": 4}, 20))
        self.assertGreater(rows["fork in a search, Stats::fork_ns"][0]["median"], 0)

    def test_compositions_of_the_model_of_contexts_find_facts_and_lose_references(self):
        folder = os.path.join(os.path.dirname(SHIPPED), "dendrite-compose")
        run = self.run_bench("compose-quality", "--model", folder, "--questions", f"{folder}/heldout.jsonl", "--kv-tokens", "16384",
                             "--threads", "1", "--count", "12", "--classes", "Q1,Q3,note", "--lefts", "prefix", "--firsts", "0,32",
                             "--lasts", "0", "--estimates", "32")
        right = {(row["name"], row["params"]["policy"]): row for row in run["rows"] if row["unit"] == "right"}
        for name in ("Q1", "Q3"):
            self.assertGreater(right[name, "whole"]["median"], 0.9)
            self.assertGreater(right[name, "prefix first=32 last=0"]["median"], 0.9)
            self.assertLess(right[name, "prefix first=32 last=0"]["kl_mean"], 0.02)
        self.assertGreater(right["Q1", "prefix first=0 last=0"]["median"], 0.9)
        self.assertLess(right["Q3", "prefix first=0 last=0"]["median"], 0.5)  # whose name is in the document before
        self.assertGreater(right["Q3", "prefix first=0 last=0"]["kl_mean"], 1)
        self.assertGreater(right["drop_unreferenced", "edit first=32 last=0"]["median"], 0.9)
        estimates = {row["params"]["at"]: row["trials"] for row in run["rows"] if row["unit"] == "rank correlation"}
        self.assertEqual(set(estimates), {"question", "answer"})

    def test_composing_stands_beside_computing(self):
        run = self.run_bench("compose", "--shape", "tiny", "--threads", "1", "--chunks", "3", "--chunk-tokens", "64", "--trunk", "64",
                             "--own", "40", "--siblings", "3", "--system", "48", "--turn", "16", "--trials", "2",
                             "--first-uses", "3")
        samples = {row["name"]: row["samples"] for row in run["rows"] if row["unit"] == "ms"}
        for name in ("plain", "compose 16", "repeat", "known prompt", "edit", "edit exact", "join", "join exact"):
            self.assertEqual(len(samples[name]), 2, name)
        first, again = (next(row for row in run["rows"] if row["name"] == name) for name in ("first use", "compose 32"))
        self.assertEqual(len(first["samples"]), 3)  # a process each
        self.assertGreater(min(first["samples"]), 0)
        self.assertEqual(first["params"], again["params"])
        chats = next(row for row in run["rows"] if row["name"] == "chats")
        self.assertAlmostEqual(chats["median"], 1 - (48 + 4 * 16) / (4 * 64), delta=0.05)

    def test_constraint_counts_masks_and_compares_with_none(self):
        run = self.run_bench("constraint", "--model", QWEN3, "--threads", "1", "--branches", "1,3", "--prompt-length", "9",
                             "--output-length", "40", "--trials", "2")
        masks = [row for row in run["rows"] if row["name"] == "mask"]
        self.assertEqual({row["params"]["text"] for row in masks}, {"the first of its grammar", "the same again", "random"})
        for row in masks:
            self.assertGreater(row["states"], 1, row)
            self.assertLessEqual(row["min"], min(row["median"], row["mean"]), row)
            self.assertLessEqual(row["p99"], row["max"], row)
        steps = {}
        for row in run["rows"]:
            steps.setdefault((row["name"], row["params"].get("constraint")), []).append(row)
        for name, forced in (("regex, nothing forced", False), ("JSON records", True)):
            with self.subTest(name):
                self.assertEqual([row["params"]["branches"] for row in steps["overhead", name]], [1, 3])
                for row in steps["overhead", name]:
                    self.assertGreater(min(row["ours_median"], row["peer_median"]), 0, row)
                for row in steps["steps a token", name]:  # one token is of the prompt's distribution
                    self.assertEqual(row["median"] < 39 / 40, forced, row)
        self.assertIn(("second token after fork", "JSON records"), steps)

    def test_agents_run_in_every_mode(self):
        run = self.run_bench("agents", "--shape", "tiny", "--threads", "1", "--agents", "1,3", "--callers", "2",
                             "--prompt-length", "20", "--depth", "2", "--width", "3", "--length", "4",
                             "--judge-length", "2", "--caller-prompt", "5", "--caller-length", "6", "--trials", "2")
        modes = ["joined", "turns", "processes", "one-call", "alone"]
        for work, agents, expected in (("tot", 1, modes[:1]), ("tot", 3, modes), ("callers", 2, modes)):
            rows = {row["name"]: row for row in run["rows"]
                    if (row["params"]["work"], row["params"]["agents"]) == (work, agents)}
            self.assertEqual([mode for mode in modes if mode in rows], expected)
            for mode in expected:
                for name in ("", ", an agent", ", first token", ", gap"):
                    row = rows[mode + name]
                    self.assertEqual((row["trials"], len(row["samples"])), (2, 2), row)
                    self.assertGreater(row["min"], 0, row)
            self.assertEqual("joined_vs_turns" in rows, agents > 1)

    def test_agents_prefill_a_long_prompt_beside_others(self):
        run = self.run_bench("agents", "--work", "prefill", "--shape", "tiny", "--threads", "1", "--targets", "inf,20",
                             "--long-prompt", "100", "--others", "2", "--others-prompt", "8", "--others-length", "16",
                             "--trials", "2")
        for target in ("none", 20):
            names = [row["name"] for row in run["rows"] if row["params"]["target_ms"] == target]
            self.assertEqual(names, ["prefill, alone", "prefill, beside others", "prefill, beside / alone",
                                     "rows of a step", "gap of others, before", "gap of others, beside",
                                     "longest gap of a trial"])

    def test_moves_stand_beside_a_copy(self):
        run = self.run_bench("moves", "--shapes", "tiny", "--threads", "2", "--tokens", "100", "--offsets", "0,5",
                             "--trials", "3")
        self.assertEqual(run["bench"], "moves")
        self.assertEqual([(row["name"], row["params"]["offset"], row["params"]["runs"]) for row in run["rows"]],
                         [(name, offset, runs) for offset, runs in ((0, 7), (5, 13))
                          for name in ("moves", "copy", "share of copy bandwidth")])
        for row in run["rows"]:
            self.assertEqual(row["trials"], 3)
            self.assertGreater(row["min"], 0, row)
        for moved, copied, share in zip(run["rows"][::3], run["rows"][1::3], run["rows"][2::3]):
            self.assertEqual((share["ours_median"], share["peer_median"]), (moved["median"], copied["median"]))

    SPECULATE = ("--shape", "tiny", "--threads", "1", "--trials", "2", "--budget", "4", "--oracle", "0.6,0.9")

    def test_speculate_compares_modes_over_texts(self):
        run = self.run_bench("speculate", *self.SPECULATE, "--parts", "texts", "--texts", "again,astray", "--branches", "1,3",
                             "--prompt-length", "40", "--output-length", "24")
        self.assertEqual(run["device"]["kinds_without_text"], ["coding", "prose", "natural language", "vision"])
        cases = [(text, branches) for text in ("again", "astray") for branches in (1, 3)]
        rows = {}
        for row in run["rows"]:
            rows.setdefault(row["name"], []).append(row)
        self.assertEqual([(row["params"]["text"], row["params"]["branches"]) for row in rows["token, plain"]], cases)
        modes = [("suffix", None), ("oracle-chain", 0.6), ("oracle-chain", 0.9), ("oracle-tree", 0.6), ("oracle-tree", 0.9)]
        for name in ("token, speculated", "speedup"):
            self.assertEqual([(row["params"]["mode"], row["params"].get("right")) for row in rows[name]], modes * len(cases))
        for row in rows["speedup"]:
            self.assertEqual(len(row["samples"]), 2)
            # (Branches that say the same take the same rows.)
            self.assertGreater(row["params"]["branches"] * row["drafted_a_step"] + 1e-9, row["accepted_a_step"])
            self.assertIn(row["params"]["kind"], ("made up",))
        self.assertEqual(len(rows["tree by chain"]), 2 * len(cases))
        self.assertEqual(rows["slower than plain by 2 %"][0]["of"], len(modes) * len(cases))

    def test_speculate_verifies_all_nodes(self):
        run = self.run_bench("speculate", *self.SPECULATE, "--parts", "verify", "--nodes", "3,40", "--verify-prompt", "20",
                             "--verify-steps", "4", "--bandwidth-gbs", "10", "--tflops", "0.1")
        steps = [row for row in run["rows"] if row["name"] == "step, verifying"]
        self.assertEqual([(row["params"]["shape"], row["params"]["nodes"]) for row in steps],
                         [("chain", 3), ("tree", 3), ("tree", 40), ("bushy", 3), ("bushy", 40)])  # no chain is so deep
        for row in steps:
            self.assertEqual(row["rows"], row["params"]["nodes"])
        for name in ("step, plain", "step, plain, not early", "verify", "verify, by not early", "floor, bytes",
                     "floor, operations", "verify, by floor"):
            self.assertEqual(len([row for row in run["rows"] if row["name"] == name]), len(steps), name)

    def test_speculate_search_stands_beside_prefix_caches(self):
        run = self.run_bench("speculate-search", *self.SPECULATE, "--prompt-length", "20", "--depth", "2", "--branch", "2",
                             "--keep", "2", "--length", "8", "--judge-length", "2")
        searches = [(row["params"]["as"], row["params"].get("mode")) for row in run["rows"] if row["name"] == "search"]
        self.assertEqual(searches, [("tree", None), ("tree", "suffix"), ("tree", "oracle-chain"), ("tree", "oracle-chain"),
                                    ("tree", "oracle-tree"), ("tree", "oracle-tree"), ("radix", None), ("block", None)])
        for name in ("speedup", "tree_vs_radix", "tree_vs_block"):
            self.assertEqual(len([row for row in run["rows"] if row["name"] == name]), 5, name)

    def test_speculate_search_solves_the_same_puzzles(self):
        run = self.run_bench("speculate-search", "--model", SHIPPED, "--threads", "1", "--trials", "1", "--puzzles", "2",
                             "--samples", "3", "--sessions", "fresh,one")
        rows = [row for row in run["rows"] if row["name"] == "tokens"]
        self.assertEqual([(row["params"]["sessions"], row["params"]["mode"]) for row in rows],
                         [("fresh", "plain"), ("fresh", "suffix"), ("one", "plain"), ("one", "suffix")])
        for plain, drafted in zip(rows[::2], rows[1::2]):
            for key in ("tokens_generated", "solved", "puzzles"):
                self.assertEqual(plain[key], drafted[key])
            self.assertGreaterEqual(plain["steps"], drafted["steps"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
