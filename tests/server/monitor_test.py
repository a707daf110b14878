"""monitor_test.py DENDRITE: scripts/monitor.py says of a server what was asked of it."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import unittest
import urllib.request

PROGRAM = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/monitor.py"
spec = importlib.util.spec_from_file_location("monitor", SCRIPT)
monitor = importlib.util.module_from_spec(spec)
spec.loader.exec_module(monitor)


class MonitorTest(unittest.TestCase):
    def setUp(self):
        self.server = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--model", ROOT / "models/dendrite-24", "--threads", "1",
                                        "--metrics-prefix", "vllm:"], stdout=subprocess.PIPE, text=True)
        self.url = self.server.stdout.readline().removeprefix("listening on ").strip()

    def tearDown(self):
        self.server.terminate()
        self.server.wait(60)
        self.server.stdout.close()

    def ask(self):
        body = json.dumps({"prompt": "S 24: 4 5 6 10\n", "max_tokens": 20, "ignore_eos": True, "temperature": 0})
        request = urllib.request.Request(f"{self.url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["usage"]

    def test_a_line_is_of_what_came_since_the_last(self):
        first = self.ask()
        before = monitor.read(self.url, "")
        usage = self.ask()
        now = monitor.read(self.url, "")
        told = dict(zip(monitor.COLUMNS, monitor.cells(before, now, 2.0)))
        self.assertEqual((told["tok/s"], told["run"], told["wait"]), ("10", "0", "0"))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, first["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(told["prefix"], f"{cached / usage['prompt_tokens']:.1%}")
        self.assertEqual(told["chunks"], "-")  # nobody wanted one
        for name in ("rows", "GB/s", "first"):
            self.assertGreater(float(told[name]), 0, name)
        self.assertGreaterEqual(float(told["gap"]), 0)  # 0, where all tokens were there when it looked
        for name in ("pages", "filled"):
            self.assertRegex(told[name], r"^[\d.]+%$")
        nothing = dict(zip(monitor.COLUMNS, monitor.cells(now, now, 1.0)))
        self.assertEqual([nothing[name] for name in ("tok/s", "rows", "prefix", "first")], ["0", "-", "-", "-"])

    def test_it_prints_so_many_lines(self):
        done = subprocess.run([sys.executable, "-B", SCRIPT, self.url, "--every", "0.01", "--count", "2"], capture_output=True,
                              text=True, timeout=60, check=True)
        self.assertEqual([len(line.split()) for line in done.stdout.splitlines()], [len(monitor.COLUMNS)] * 3)


class NoServerTest(unittest.TestCase):
    def test_it_says_what_it_expected(self):
        done = subprocess.run([sys.executable, "-B", SCRIPT, "http://127.0.0.1:9"], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected a server of `dendrite serve`", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
