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
import bench_commits  # noqa: E402
import bench_compose  # noqa: E402
import bench_decoding  # noqa: E402
import bench_samples as samples  # noqa: E402
import bench_report  # noqa: E402

COMMIT = "0123456789ab"
STEP = {"branches": 1, "prompt_length": 512, "own": 32, "output_length": 240}


def run(side, rows, machine="aaaa", date="2026-01-01T00:00:00Z", peers=(), **other):
    return {"schema": 1, "bench": "decode", "side": side, "version": COMMIT, "date": date, "command": "bench",
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

    def test_nothing_of_another_machine_stands_beside_a_row(self):
        series = self.write(run("dendrite", [row([1.0])]), run("vllm-default", [row([2.0])], machine="bbbb"))
        self.assertIsNone(samples.partner(series, series[0], "vllm-default"))

    def test_a_row_of_one_machine_stands_beside_it_though_another_is_newer(self):
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

    def test_a_headline_says_the_better_mode_of_one_machine(self):
        series = self.write(run("dendrite", [row([4.0] * 16)]), run("vllm-default", [row([9.0] * 16)]),
                            run("vllm-cascade", [row([8.0] * 16)]),
                            run("dendrite", [row([1.0] * 16)], machine="bbbb", date="2026-02-01T00:00:00Z"))
        text = blocks.vllm_headline(series)
        self.assertIn("| 4.00 ms | 8.00 ms | 2.00x [2.00, 2.00] |", text)
        self.assertIn("One machine: `aaaa`: H200, driver 580, 16 cores of Xeon. 16 trials a row", text)

    def test_one_mode_alone_is_not_the_better_one(self):
        series = self.write(run("dendrite", [row([4.0] * 16)]), run("vllm-default", [row([9.0] * 16)]))
        self.assertEqual(blocks.vllm_headline(series), "")

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
        self.assertIn("1.50 [1.50, 1.50] times as long with a radix prefix cache", blocks.searches_headline(series))
        self.assertIn("| 1.50x [1.50, 1.50] | 2.00x [2.00, 2.00] | 8.00x [8.00, 8.00] |", blocks.searches_all(series))
        self.assertIn("| 1 x 512 | 4.00 ms | 8.00 ms | 2.00x [2.00, 2.00] | 6.00 ms | 1.50x [1.50, 1.50] |",
                      blocks.attention_all(series))
        self.assertIn("flashinfer 0.7 on `aaaa`, 2026-01-01. One machine", blocks.attention_all(series))
        self.assertIn("| 250m | avx2 | 2 | 512 | 1 | 5.00 ms | 10.0 ms | 2.00x [2.00, 2.00] |",
                      blocks.llama_all(series))
        self.assertEqual(set(bench_report.drawings(series)), {"docs/bench/flashinfer.svg", "docs/bench/searches.svg"})


class Compositions(Folder):
    def rows(self, plain, composed):
        return [row([plain] * 2, {"tokens": 100}, name="plain", bench="compose"),
                row([composed] * 2, {"tokens": 100, "first": 16}, name="compose 16", bench="compose")]

    def test_what_stands_beside_a_composition_is_of_its_machine(self):
        vllm = [row([30, 30], {"tokens": 100}, name="compose", bench="compose")]
        series = self.write(run("dendrite", self.rows(40, 4)), run("vllm-default", vllm),
                            run("dendrite", self.rows(90, 1), machine="bbbb", date="2026-02-01T00:00:00Z"))
        text = bench_compose.times_all(series, "nothing")
        self.assertIn("first 16 of each computed | 4.00 ms | 4.00 | 40.0 ms | 10.00x [10.00, 10.00] | 30.0 ms | 7.50x [7.50, 7.50] |",
                      text)

    def test_nothing_is_divided_across_two_machines(self):
        again = row([0.5] * 2, {"tokens": 100}, name="repeat", bench="compose")
        vllm = [row([30, 30], {"tokens": 100}, name=name, bench="compose") for name in ("compose", "repeat")]
        series = self.write(run("dendrite", self.rows(40, 4) + [again]), run("vllm-default", vllm, machine="bbbb"))
        text = bench_compose.times_all(series, "nothing")
        self.assertIn("| 4.00 ms | 4.00 | 40.0 ms | 10.00x [10.00, 10.00] |\n| the same again | 0.500 ms | 0.500 | |  |\n", text)
        self.assertNotIn("vllm", text)

    def test_the_first_use_stands_beside_the_repeated_one(self):
        first = row([9.0, 9.0], {"tokens": 100, "first": 16}, name="first use", bench="compose")
        other = row([5.0, 5.0], {"tokens": 100, "first": 0}, name="compose 0", bench="compose")
        series = self.write(run("dendrite", [*self.rows(40, 4), first, other]))
        text = bench_compose.times_all(series, "nothing")
        self.assertIn("first 16 of each computed | 4.00 ms | 4.00 | 9.00 ms |", text)
        self.assertIn("first 0 of each computed | 5.00 ms | 5.00 | |", text)

    def test_answers_to_an_edit_are_those_of_all_runs(self):
        def answers(asked, right, kl):
            return run("dendrite", [
                {"name": "move", "params": {"policy": "whole"}, "unit": "right", "median": 1.0, "trials": 10},
                {"name": "move", "params": {"policy": "edit first=0 last=0"}, "unit": "right", "median": right, "trials": 10,
                 "kl_mean": kl}], bench="compose-quality", model="dendrite-compose", command=f"b --classes {asked} --count 10")

        series = self.write(answers("note", 1.0, 0.0), answers("state", 0.5, 0.5))
        text = bench_compose.quality(series, "nothing", headline=False)
        self.assertIn("| edit: a visit moved | 20 | 100 % | 75 %, 0.25 |", text)


class Decoding(Folder):
    def named(self, name, values, params, **other):
        return row(values, params, name=name, **other)

    def test_steps_say_rates_and_what_a_branch_holds(self):
        of = {**STEP, "branches": 8, "prompt_length": 4096}
        series = self.write(run("dendrite", [
            row([4.0] * 14 + [5.0] * 2, of), self.named("decode", [2000.0] * 16, of, unit="tok/s"),
            {"name": "memory a branch", "params": of, "unit": "GB", "median": 0.1, "trials": 1, "alone": 0.4, "saved": 0.75}],
            conditions=[{}, {"gpu_mib": 2048}]))
        text = blocks.BLOCKS["sweep"](series)
        self.assertIn("| 8 | 4.00 ms | 5.00 | 2,000 | 0.100 GB | 0.400 GB | 75.0 % |", text)
        self.assertIn("2.0 GiB of the GPU's memory", text)

    def test_a_tree_stands_beside_a_chain_that_differs_in_width_only(self):
        chain = {"depth": 10, "branch": 1, "keep": 1, "prompt_length": 1024, "length": 32}
        of = {**STEP, "branches": 1}
        held = {"name": "memory a branch", "params": of, "unit": "GB", "median": 0.1, "trials": 1, "alone": 0.4, "saved": 0.75}
        tree = {**chain, "branch": 5, "keep": 5}

        def search(value, params, **other):
            return run("dendrite", [self.named("tree", [value] * 16, params, unit="s")], bench="tree-vs-linear", **other)

        series = self.write(run("dendrite", [row([4.0] * 16, of), held]), search(2.0, chain), search(3.0, tree),
                            search(9.0, {**tree, "length": 64}, date="2026-03-01T00:00:00Z"))
        text = blocks.BLOCKS["sweep"](series)
        self.assertIn("| a chain of 10, thoughts of 32 | 2.00 [2.00, 2.00] | 2.00 |", text)
        self.assertIn("| depth 10, 5 children, 5 kept, thoughts of 32 | 3.00 [3.00, 3.00] | 3.00 |", text)
        self.assertNotIn("9.00", text)

    def test_a_constraint_stands_beside_none_in_the_same_run(self):
        def rows(text, branches, free, held):
            of = {"constraint": text, "branches": branches, "output_length": 128}
            return [self.named("token, unconstrained", [free] * 16, of), self.named("token, constrained", [held] * 16, of)]

        series = self.write(
            run("dendrite", [*rows("JSON records", 1, 4.0, 2.0), *rows("JSON records", 8, 4.0, 3.0)], bench="constraint"),
            run("dendrite", rows("JSON records", 1, 1.0, 2.0), bench="constraint", model="random-1b"))
        self.assertEqual(bench_decoding.constraint(series, "").splitlines()[:4], [
            "| times as long as without | 1 branch | 8 branches |", "| --- | --- | --- |",
            "| 8B shape, JSON records | 0.50x [0.50, 0.50] | 0.75x [0.75, 0.75] |",
            "| 1B shape, JSON records | 2.00x [2.00, 2.00] | |"])
        self.assertNotIn("1B", blocks.BLOCKS["constraint-headline"](series))

    def test_speculation_says_speedups_and_losses(self):
        def speedup(text, mode, branches, value, **more):
            return self.named("speedup", [value] * 16, {"text": text, "branches": branches, "mode": mode, **more}, unit="x")

        series = self.write(run("dendrite", [
            speedup("again", "suffix", 1, 12.0), speedup("again", "suffix", 8, 11.0),
            speedup("sampled", "oracle-chain", 1, 5.0, right=0.86),
            {"name": "slower than plain by 2 %", "params": {}, "unit": "cases", "median": 2, "trials": 1, "of": 3, "surely": 0}],
            bench="speculate"))
        text = blocks.BLOCKS["speculation-headline"](series)
        self.assertIn("| 8B shape, what the session has said before | its own texts | 12.00x [12.00, 12.00] | 11.00x [11.00, 11.00] |",
                      text)
        self.assertIn("an oracle, a chain that is right 86 times in 100 | 5.00x [5.00, 5.00] | |", text)
        self.assertIn("More than 2 % slower than without: 2 of 3 cases.", text)


class Kept(Folder):
    """What may be shown."""

    def test_few_trials_are_not_shown(self):
        series = self.write(run("dendrite", [row([4.0] * 15), row([4.0] * 16), row([4.0]),
                                             {"name": "held", "params": {}, "unit": "GB", "median": 1, "trials": 1},
                                             {"name": "Q1", "params": {}, "unit": "right", "median": 1, "trials": 12}]))
        self.assertEqual([s.is_shown for s in series], [False, True, False, True, False])

    def git(self, *arguments, folder=None):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        done = subprocess.run(["git", "-C", str(folder or self.root), *who, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, message="a"):
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "--short=12", "HEAD")

    def test_commits_of_the_history_only(self):
        self.git("init", "-q", "-b", "main")
        old = self.commit()
        self.git("checkout", "-q", "-b", "other")
        other = self.commit("b")
        self.git("checkout", "-q", "main")
        head = self.commit()
        commits = bench_commits.Commits(self.root)
        self.assertEqual([commits.fault(version) for version in (old, head)], ["", ""])
        self.assertEqual(commits.fault(other), "is not in the history of HEAD")
        self.assertEqual(commits.fault("ffffffffffff"), "is not in the history of HEAD")
        self.assertEqual(commits.fault(old + "-dirty"), "has changes that no commit has")
        self.assertEqual(commits.fault("unknown"), "is no commit")
        self.assertEqual(commits.note(), "")
        series = self.write(run("dendrite", [row([1.0])], version=old + "-dirty"),
                            run("dendrite", [], peers=[row([3.0], peer="llama.cpp v1")], version="ffffffffffff"),
                            run("vllm-default", [row([2.0])], version="0.26.0"))
        self.assertEqual(commits.faults(series), [
            f"bench/results/all.jsonl: version {version} {fault}; expected a commit of HEAD's history" for version, fault in
            sorted([(old + "-dirty", "has changes that no commit has"), ("ffffffffffff", "is not in the history of HEAD")])])

    def test_a_shallow_clone_says_what_it_cannot_check(self):
        self.git("init", "-q", "-b", "main")
        old, head = self.commit(), self.commit("b")
        clone = self.root / "clone"
        self.git("clone", "-q", "--depth", "1", f"file://{self.root}", str(clone))
        commits = bench_commits.Commits(clone)
        self.assertEqual([commits.fault(version) for version in (head, old)], ["", ""])
        self.assertIn("whether 1 commits are in the history was not checked: the clone is shallow", commits.note())
        self.assertEqual(commits.fault(old + "-dirty"), "has changes that no commit has")

    def test_without_git_it_says_so(self):
        commits = bench_commits.Commits(self.root)
        self.assertEqual(commits.fault(COMMIT), "")
        self.assertIn("this is not a git repository", commits.note())


class Pages(Folder):
    def setUp(self):
        super().setUp()
        for name in bench_report.PAGES:
            shutil.copy(ROOT / name, self.root / name)
        self.write_steps(4.0)

    def write_steps(self, value, trials=16, **other):
        sides = (("dendrite", value), ("vllm-default", 8.0), ("vllm-cascade", 9.0))
        self.write(*(run(side, [row([x] * trials)], **other) for side, x in sides))

    def report(self, *flags):
        tool = [sys.executable, "-B", str(ROOT / "tools/bench_report.py"), "--root", str(self.root), *flags]
        done = subprocess.run(tool, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_what_was_written_is_current_until_somebody_types(self):
        self.assertEqual(self.report()[0], 0)
        code, said = self.report("--check")
        self.assertEqual(code, 0)
        self.assertRegex(said, "^bench/results: whether 1 commits .*: this is not a git repository\n$")
        readme = self.root / "README.md"
        text = readme.read_text()
        self.assertIn("| 4.00 ms | 8.00 ms |", text)
        readme.write_text(text.replace("4.00 ms", "3.05 ms"))
        code, said = self.report("--check")
        self.assertEqual(code, 1)
        self.assertIn("README.md: is not what bench/results/ gives", said)
        self.assertIn("3.05 ms", readme.read_text())

    def test_nothing_is_introduced_that_no_samples_give(self):
        for name in bench_report.PAGES:
            text = bench_report.page((ROOT / name).read_text(), [], name)
            empty = r":\n\n(<!-- bench:[\w.-]+ -->\n(<!-- /bench -->|Not measured))"
            self.assertNotRegex(text, empty, name)

    def test_new_samples_make_pages_and_charts_stale(self):
        self.report()
        self.write_steps(5.0)
        said = self.report("--check")[1]
        for name in ("README.md", "bench/RESULTS.md", "docs/bench/vllm-8b-steps.svg"):
            self.assertIn(f"{name}: is not what", said)

    def test_a_chart_that_nothing_gives_is_removed(self):
        self.report()
        chart = self.root / "docs/bench/vllm-8b-steps.svg"
        self.assertTrue(chart.exists())
        self.write_steps(4.0, trials=15)
        self.assertIn("docs/bench/vllm-8b-steps.svg: no samples give it", self.report("--check")[1])
        self.assertIn("rows of fewer than 16 trials are not shown", self.report()[1])
        self.assertFalse(chart.exists())
        self.assertNotIn("4.00 ms", (self.root / "README.md").read_text())
        self.assertNotIn("vllm-8b-steps", (self.root / "bench/RESULTS.md").read_text())

    def test_sources_that_no_commit_has_are_an_error(self):
        self.write_steps(4.0, version=COMMIT + "-dirty")
        code, said = self.report()
        self.assertEqual(code, 1)
        self.assertIn(f"bench/results/all.jsonl: version {COMMIT}-dirty has changes that no commit has; expected a commit", said)

    def test_an_unknown_block_is_an_error(self):
        readme = self.root / "README.md"
        readme.write_text(readme.read_text() + "<!-- bench:speed -->\n<!-- /bench -->\n")
        code, said = self.report()
        self.assertEqual(code, 1)
        self.assertIn("block is bench:speed; expected one of", said)


if __name__ == "__main__":
    unittest.main()
