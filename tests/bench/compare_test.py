"""tools/bench_compare.py: what is worse than before fails, what is as good or better does not."""
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import bench_compare as compare  # noqa: E402
from bench_samples import rows_of  # noqa: E402

TREE = {"depth": 5, "branch": 4}


def series(bench, *rows, kernels="avx2", date="2026-01-01"):
    run = {"bench": bench, "side": "dendrite", "version": "1", "date": date, "command": "bench", "machine": {"id": "a"},
           "device": {"kind": "cpu", "kernels": kernels, "threads": 2}, "model": "dendrite-24", "rows": list(rows), "peers": []}
    return list(rows_of(run, "run.jsonl"))


def row(name, values, params=TREE):
    return {"name": name, "params": params, "unit": "s", "samples": values}


def search(radix, tree, **other):
    return series("tree-vs-linear", row("tree", [tree, tree * 1.01] * 8), row("radix", [radix, radix * 1.01] * 8), **other)


class Ratios(unittest.TestCase):
    def test_a_gain_that_shrinks_is_worse_on_a_faster_machine_too(self):
        self.assertEqual(len(compare.worse_ratios(search(0.6, 0.5), search(3.0, 2.0))), 1)

    def test_the_same_gain_is_none_on_a_slower_machine(self):
        self.assertEqual(compare.worse_ratios(search(30, 20), search(3.0, 2.0)), [])
        self.assertEqual(compare.worse_ratios(search(40, 20), search(3.0, 2.0)), [])

    def test_scatter_is_no_regression(self):
        noisy = series("tree-vs-linear", row("tree", [2, 3] * 8), row("radix", [2.2, 4.4] * 8))
        self.assertEqual(compare.worse_ratios(noisy, search(3.0, 2.0)), [])

    def test_what_nothing_is_kept_of_fails_and_is_named(self):
        kept = search(3.0, 2.0)
        self.assertEqual(len(compare.worse_ratios(search(0.6, 0.5), kept)), 1)
        other = search(3.0, 2.0, kernels="amx_bf16")
        for measured, before in ((kept, other), (other + kept, kept), (kept, [])):
            said = compare.worse_ratios(measured, before)
            self.assertEqual(len(said), 1)
            self.assertRegex(said[0], "^MISSING: tree-vs-linear, radix / tree, .*: 1.50x; no samples are kept of it")

    def test_rows_without_a_ratio_fail(self):
        self.assertIn("MISSING: got rows without", compare.worse_ratios([], search(3.0, 2.0))[0])

    def test_speedups_constraints_and_forks(self):
        def all_of(speedup, constrained, long):
            fork = [row("fork", [ns] * 9, {"tokens": tokens, "depth": 1}) for ns, tokens in ((50, 16), (long, 131072))]
            return (series("speculate", row("speedup", [speedup] * 9)) + series("fork-overhead", *fork) + series(
                "constraint", row("token, unconstrained", [1] * 9), row("token, constrained", [constrained] * 9)))
        kept = all_of(2.0, 0.5, 50)
        self.assertEqual(compare.worse_ratios(all_of(1.9, 0.52, 55), kept), [])
        self.assertEqual(len(compare.worse_ratios(all_of(1.5, 0.7, 80), kept)), 3)


class Thresholds(unittest.TestCase):
    WANT = [{"bench": "game24", "model": "dendrite-24", "name": "tot", "params": {"width": 1}, "least": 0.9}]

    def share(self, value):
        return series("game24", {"name": "tot", "params": {"width": 1, "set": "x"}, "unit": "solved", "median": value, "trials": 9})

    def test_less_fails_and_so_does_what_was_not_measured(self):
        self.assertEqual(compare.below_thresholds(self.share(0.95), self.WANT), [])
        self.assertIn("0.850; expected 0.9 or more", compare.below_thresholds(self.share(0.85), self.WANT)[0])
        self.assertIn("was not measured", compare.below_thresholds([], self.WANT)[0])

    def test_the_kept_ones_are_of_the_shipped_models(self):
        kept = json.loads(compare.THRESHOLDS.read_text())
        self.assertEqual({want["model"] for want in kept}, {"dendrite-24", "dendrite-tools", "dendrite-compose"})
        for want in kept:
            self.assertTrue((ROOT / "models" / want["model"]).is_dir())


if __name__ == "__main__":
    unittest.main()
