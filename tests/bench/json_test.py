"""json_test.py DENDRITE_BENCH: --trials counts trials, and --json keeps a sample of each (bench/results/README.md)."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]


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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
