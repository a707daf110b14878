"""bench/peers/vllm/run.py and compose.py with a pretended vLLM: what the workloads ask for, samples, the time limit, the
file."""
import argparse
import importlib.util
import itertools
import pathlib
import sys
import types
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/peers/vllm"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


run = load("run")
compose = load("compose")


class Pretended:
    """Takes 0.1 s a call and 2 ms a token; every token it gives is 7."""

    def __init__(self):
        self.calls = []

    def __call__(self, prompts, count, temperature, n=1, **more):
        self.calls.append(([len(prompt) for prompt in prompts], count, temperature, n, more))
        sequence = types.SimpleNamespace(token_ids=[7] * count)
        return 0.1 + 0.002 * count, [types.SimpleNamespace(outputs=[sequence] * n) for _ in prompts]


class Remembered:
    """A prefix cache: 1 ms a token that no prompt had there, behind the same tokens."""

    def __init__(self):
        self.known = []

    def __call__(self, prompts, count, temperature):
        def new(prompt):
            same = [sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, known)))
                    for known in self.known]
            return len(prompt) - max(same, default=0)

        seconds = 0.001 * sum(new(prompt) for prompt in prompts)
        self.known += prompts
        return seconds, []


class Contexts(unittest.TestCase):
    def test_parts_are_known_and_contexts_are_not(self):
        options = argparse.Namespace(chunks=4, chunk_tokens=10, query=3, siblings=2, trunk=7, own=5, trials=1)
        contexts = compose.Contexts(Remembered(), options)
        contexts.trial()
        contexts.trial()
        samples = {row["name"]: (row["samples"], row["params"]) for row in contexts.rows()}
        context = {"tokens": 43}
        # Of a context the first chunk is known, of what is joined the trunk with the first sibling.
        self.assertEqual(samples, {
            "plain": ([43, 43], context), "known prompt": ([0, 0], context), "compose": ([33, 33], context),
            "repeat": ([0, 0], context), "edit": ([20, 20], {"behind": 20}),
            "join": ([5, 5], {"trunk": 7, "siblings": 2, "own": 5})})


class Workloads(unittest.TestCase):
    def setUp(self):
        self.vllm = Pretended()
        self.work = run.Workloads(self.vllm)

    def test_a_step_is_the_slope_between_two_lengths(self):
        row = self.work.decode(8, 100, 16, 144, trials=3)
        self.assertTrue(run.measure(row, float("inf")))
        self.assertEqual(len(row.samples), 3)
        for sample in row.samples:
            self.assertAlmostEqual(sample, 2.0)
        self.assertEqual(self.vllm.calls[0][0], [100])  # the shared prefix, before what counts
        self.assertEqual([call[1] for call in self.vllm.calls], [1] + 3 * [16, 144])
        self.assertEqual(self.vllm.calls[1][0], [116] * 8)
        self.assertEqual(row.params, {"branches": 8, "prompt_length": 100, "own": 32, "output_length": 128})

    def test_a_search_grows_what_it_keeps(self):
        row = self.work.search(2, 4, 3, trials=1, prompt=50, length=5, judge=2)
        run.measure(row, float("inf"))
        one = [([50], 5, 0.7, 4, {}), ([57] * 4, 1, 0.0, 1, {}),
               ([55] * 3, 5, 0.7, 4, {}), ([62] * 12, 1, 0.0, 1, {})]
        self.assertEqual(self.vllm.calls, 2 * one)  # a search that does not count, and one that does
        self.assertEqual(len(row.samples), 1)

    def test_scores_ask_for_log_probs_of_the_prompt(self):
        run.measure(self.work.score(20, 3, 4, trials=2), float("inf"))
        self.assertEqual(self.vllm.calls, 3 * [([24] * 3, 1, 0.0, 1, {"prompt_logprobs": 1})])

    def test_readme_rows_come_first_with_all_trials(self):
        rows = self.work.rows(16)
        self.assertEqual([row.trials for row in rows[:4]], [16] * 4)
        self.assertEqual([row.params.get("branches", "search") for row in rows[:4]], [1, 32, 128, "search"])

    def test_time_that_is_over_ends_a_row(self):
        clock = iter(range(0, 1000, 10))
        row = self.work.prefill(10, trials=8)
        self.assertFalse(run.measure(row, 55, now=lambda: next(clock)))
        self.assertEqual(len(row.samples), 2)
        self.assertFalse(run.measure(self.work.prefill(10, trials=8), 55, now=lambda: 60))

    def test_the_file_keeps_raw_samples(self):
        row = self.work.rows(4)[0]
        run.measure(row, float("inf"))
        out = run.run_json("1b", "vllm-cascade", "0.26.0", "run.py --shape 1b", [row.to_json()])
        self.assertEqual((out["schema"], out["side"], out["model"]), (1, "vllm-cascade", "random-1b"))
        self.assertEqual(len(out["rows"][0]["samples"]), 4)
        self.assertEqual(set(out["machine"]), {"gpu", "driver", "cpu", "cores", "id"})


if __name__ == "__main__":
    unittest.main()
