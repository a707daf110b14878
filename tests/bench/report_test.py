"""tools/bench_*.py: intervals, which rows stand beside each other, and pages that are what samples give."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import bench_blocks as blocks  # noqa: E402
import bench_compose  # noqa: E402
import bench_samples as samples  # noqa: E402
import bench_report  # noqa: E402

STEP = {"branches": 1, "prompt_length": 512, "own": 32, "output_length": 240}


def run(side, rows, machine="aaaa", date="2026-01-01T00:00:00Z", peers=(), **other):
    return {"schema": 1, "bench": "decode", "side": side, "version": "1", "date": date, "command": "bench",
            "machine": {"gpu": "H200", "driver": "580", "cpu": "Xeon", "cores": 16, "id": machine},
            "device": {"kind": "cuda"}, "model": "random-8b", "rows": rows, "peers": list(peers), **other}


def row(values, params=STEP, **other):
    return {"name": "step", "params": params, "unit": "ms", "samples": values, **other}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.results = self.root / "bench/results"
        self.results.mkdir(parents=True)

    def write(self, *runs):
        (self.results / "all.jsonl").write_text("".join(json.dumps(r) + "\n" for r in runs))
        return samples.read(self.results)


class Intervals(unittest.TestCase):
    def test_of_a_ratio_holds_its_value_and_is_the_same_each_time(self):
        ours, theirs = [10.0, 11, 9, 10, 10.5, 9.5, 10, 12], [20.0, 22, 19, 20, 21, 19, 20, 23]
        first = samples.ratio(theirs, ours)
        self.assertAlmostEqual(first.value, 2.0)
        self.assertLess(first.low, 2.0)
        self.assertGreater(first.high, 2.0)
        self.assertLess(first.high - first.low, 0.6)
        self.assertEqual(first, samples.ratio(theirs, ours))

    def test_samples_that_do_not_differ_have_no_width(self):
        self.assertEqual(samples.ratio([3.0] * 16, [2.0] * 16), samples.Interval(1.5, 1.5, 1.5))

    def test_covers_the_true_ratio_about_as_often_as_it_says(self):
        import random
        source, hits = random.Random(5), 0
        resamples, samples.RESAMPLES = samples.RESAMPLES, 400
        for _ in range(100):
            found = samples.ratio([source.gauss(30, 3) for _ in range(16)], [source.gauss(10, 1) for _ in range(16)])
            hits += found.low <= 3 <= found.high
        samples.RESAMPLES = resamples
        self.assertGreaterEqual(hits, 88)

    def test_wilson(self):
        interval = samples.wilson(176, 269)
        self.assertEqual([round(x, 3) for x in (interval.value, interval.low, interval.high)], [0.654, 0.596, 0.709])

    def test_numbers_have_three_digits(self):
        self.assertEqual([samples.number(x) for x in (0.0156, 0.356, 4.2512, 16.12, 128.4, 1405)],
                         ["0.0156", "0.356", "4.25", "16.1", "128", "1,405"])


class Pairs(Folder):
    def test_the_newest_run_counts(self):
        series = self.write(run("dendrite", [row([1.0])], date="2026-01-02T00:00:00Z"),
                            run("dendrite", [row([2.0])], date="2026-01-03T00:00:00Z"))
        self.assertEqual(samples.find(series, "decode", "step", "dendrite").median, 2.0)

    def test_beside_a_row_stands_the_same_workload_only(self):
        series = self.write(run("dendrite", [row([1.0])]), run("vllm-default", [row([2.0], {**STEP, "own": 16})]),
                            run("vllm-default", [row([3.0])], model="random-1b"))
        self.assertIsNone(samples.partner(series, series[0], "vllm-default"))

    def test_one_machine_is_preferred_to_a_newer_run_on_another(self):
        series = self.write(run("dendrite", [row([1.0])]), run("vllm-default", [row([2.0])]),
                            run("vllm-default", [row([3.0])], machine="bbbb", date="2026-01-09T00:00:00Z"))
        ours = samples.find(series, "decode", "step", "dendrite")
        self.assertEqual(samples.partner(series, ours, "vllm-default").median, 2.0)

    def test_peers_of_a_run_are_sides(self):
        series = self.write(run("dendrite", [row([1.0])], peers=[row([3.0], peer="llama.cpp v1")]))
        self.assertEqual(samples.partner(series, series[0], "llama.cpp").median, 3.0)

    def test_another_schema_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "all.jsonl:1: schema is 2; expected 1"):
            self.write(run("dendrite", [], schema=2))

    def test_a_headline_names_both_machines_and_the_better_mode(self):
        series = self.write(run("dendrite", [row([4.0] * 16)]), run("vllm-default", [row([9.0] * 16)], machine="bbbb"),
                            run("vllm-cascade", [row([8.0] * 16)], machine="bbbb"))
        text = blocks.vllm_headline(series)
        self.assertIn("| 4.00 ms | 8.00 ms | 2.00x [2.00, 2.00] |", text)
        self.assertIn("2 machines: `aaaa`: H200, driver 580, 16 cores of Xeon; `bbbb`:", text)
        self.assertIn("16 trials a row", text)

    def test_tables_of_runs_in_turns(self):
        tree = {"depth": 5, "branch": 4, "keep": 4, "prompt_length": 400, "length": 64, "temperature": 0.7}
        search = [{**row([value], tree), "name": name, "unit": "s"}
                  for name, value in (("tree", 1.0), ("radix", 1.5), ("block", 2.0), ("reprefill", 8.0))]
        cpu = {"kind": "cpu", "kernels": "avx2", "threads": 2}
        ways = [row([value], {"case": "1 x 512"}, name="tree", peer=f"flashinfer 0.7, {way}")
                for way, value in (("flat, tensor cores", 8.0), ("flat, CUDA cores", 9.0), ("cascade, leaves", 6.0))]
        series = self.write(
            run("dendrite", search, bench="tree-vs-linear", device=cpu, model="dendrite-24"),
            run("dendrite", [row([4.0], {"case": "1 x 512"}, name="tree")], bench="flashinfer", peers=ways),
            run("dendrite", [row([5.0])], device=cpu, model="250m", peers=[row([10.0], peer="llama.cpp v1-native")]))
        self.assertIn("1.50 times as long with a radix prefix cache", blocks.searches_headline(series))
        self.assertIn("| 1.50x [1.50, 1.50] | 2.00x [2.00, 2.00] | 8.00x [8.00, 8.00] |", blocks.searches_all(series))
        self.assertIn("| 1 x 512 | 4.00 ms | 8.00 ms | 2.00x [2.00, 2.00] | 6.00 ms | 1.50x [1.50, 1.50] |",
                      blocks.attention_all(series))
        self.assertIn("flashinfer 0.7 on `aaaa`, 2026-01-01. One machine", blocks.attention_all(series))
        self.assertIn("| 250m | avx2 | 2 | 512 | 1 | 5.00 ms | 10.0 ms | 2.00x [2.00, 2.00] |",
                      blocks.llama_all(series))
        self.assertEqual(set(bench_report.drawings(series)), {"docs/bench/flashinfer.svg", "docs/bench/searches.svg"})


class Compositions(Folder):
    def test_what_stands_beside_a_composition_is_of_its_machine(self):
        def rows(plain, composed):
            return [row([plain] * 2, {"tokens": 100}, name="plain", bench="compose"),
                    row([composed] * 2, {"tokens": 100, "first": 16}, name="compose 16", bench="compose")]

        vllm = [row([30, 30], {"tokens": 100}, name="compose", bench="compose")]
        series = self.write(run("dendrite", rows(40, 4)), run("vllm-default", vllm),
                            run("dendrite", rows(90, 1), machine="bbbb", date="2026-02-01T00:00:00Z"))
        text = bench_compose.times_all(series, "nothing")
        self.assertIn("| 100 tokens of known chunks, first 16 of each computed | 4.00 ms | 40.0 ms | 10.00x [10.00, 10.00] "
                      "| 30.0 ms | 7.50x [7.50, 7.50] |", text)

    def test_answers_to_an_edit_are_those_of_all_runs(self):
        def answers(asked, right, kl):
            return run("dendrite", [
                {"name": "move", "params": {"policy": "whole"}, "unit": "right", "median": 1.0, "trials": 10},
                {"name": "move", "params": {"policy": "edit first=0 last=0"}, "unit": "right", "median": right, "trials": 10,
                 "kl_mean": kl}], bench="compose-quality", model="dendrite-compose", command=f"b --classes {asked} --count 10")

        series = self.write(answers("note", 1.0, 0.0), answers("state", 0.5, 0.5))
        text = bench_compose.quality(series, "nothing", headline=False)
        self.assertIn("| edit: a visit moved | 20 | 100 % | 75 %, 0.25 |", text)


class Pages(Folder):
    def setUp(self):
        super().setUp()
        for name in bench_report.PAGES:
            shutil.copy(ROOT / name, self.root / name)
        self.write(run("dendrite", [row([4.0, 4.1])]), run("vllm-default", [row([8.0, 8.4])]))

    def report(self, *flags):
        tool = [sys.executable, "-B", str(ROOT / "tools/bench_report.py"), "--root", str(self.root), *flags]
        done = subprocess.run(tool, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_what_was_written_is_current_until_somebody_types(self):
        self.assertEqual(self.report()[0], 0)
        self.assertEqual(self.report("--check"), (0, ""))
        readme = self.root / "README.md"
        text = readme.read_text()
        self.assertIn("| 4.05 ms | 8.20 ms |", text)
        readme.write_text(text.replace("4.05 ms", "3.05 ms"))
        code, said = self.report("--check")
        self.assertEqual(code, 1)
        self.assertIn("README.md: is not what bench/results/ gives", said)
        self.assertIn("3.05 ms", readme.read_text())

    def test_new_samples_make_pages_and_charts_stale(self):
        self.report()
        self.write(run("dendrite", [row([5.0, 5.1])]), run("vllm-default", [row([8.0, 8.4])]))
        said = self.report("--check")[1]
        for name in ("README.md", "bench/RESULTS.md", "docs/bench/vllm-8b-steps.svg"):
            self.assertIn(f"{name}: is not what", said)

    def test_an_unknown_block_is_an_error(self):
        readme = self.root / "README.md"
        readme.write_text(readme.read_text() + "<!-- bench:speed -->\n<!-- /bench -->\n")
        code, said = self.report()
        self.assertEqual(code, 1)
        self.assertIn("block is bench:speed; expected one of", said)


if __name__ == "__main__":
    unittest.main()
