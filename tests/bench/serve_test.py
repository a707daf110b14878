"""bench/serve: what the driver reads of answers that come in any pieces, its rows, and a run of two servers in turns."""
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench/serve"
sys.path[:0] = [str(FOLDER), str(ROOT / "tools")]
import bench_samples  # noqa: E402
import load  # noqa: E402
import servers  # noqa: E402
import streams  # noqa: E402

ECHO = f"{sys.executable} -B {FOLDER}/echo.py --step-ms 5"


def told(*events, status=200):
    """An answer's bytes: chunked, a chunk an event."""
    texts = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]
    chunks = "".join(f"{len(text):x}\r\n{text}\r\n" for text in texts)
    return f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n".encode()


def choice(**what):
    return {"choices": [{"index": 0, **what}]}


class Reading(unittest.TestCase):
    def read(self, pieces):
        async def run():
            stream = streams.Stream()
            stream.sent, stream.pieces = 10.0, pieces
            return streams.read(stream)

        return asyncio.run(run())

    COMPLETION = told(choice(text="a", finish_reason=None), choice(text="", token_ids=[5], finish_reason=None),
                      choice(text="", token_ids=[], finish_reason="length"),
                      {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}, "[DONE]")

    def test_every_cut_of_an_answer_says_the_same(self):
        for at in range(1, len(self.COMPLETION)):
            answer = self.read([(11.0, self.COMPLETION[:at]), (13.0, self.COMPLETION[at:])])
            self.assertEqual((answer.status, answer.chunks, answer.tokens, answer.cached, answer.fault), (200, 2, 3, 2, ""))
            self.assertEqual(answer.texts, ["a", ""])
            self.assertIn((answer.first_s, answer.gaps_s), [(1.0, [0.0]), (1.0, [2.0]), (3.0, [0.0])])

    def test_a_chats_first_token_is_not_its_role(self):
        answer = self.read([(11.0, told(choice(delta={"role": "assistant", "content": ""}))[:-5]),
                            (12.0, b"%x\r\n%s\r\n0\r\n\r\n" % (47, b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'))])
        self.assertEqual((answer.first_s, answer.chunks, answer.fault), (2.0, 1, ""))

    def test_what_is_no_answer_says_why(self):
        cut = self.read([(11.0, self.COMPLETION[:-9])])
        self.assertIn("ended before", cut.fault)
        self.assertIn("status 503: {}", self.read([(11.0, b"HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}")]).fault)
        self.assertIn("slow", self.read([(11.0, told({"error": {"message": "slow"}}))]).fault)
        self.assertTrue(self.read([]).fault)


class Rows(unittest.TestCase):
    def answer(self, first, gaps, tokens=3, **more):
        return streams.Answer(status=200, first_s=first, gaps_s=gaps, end_s=first + sum(gaps), tokens=tokens, chunks=3, **more)

    def test_p50_is_of_a_trial_and_p99_of_all(self):
        one = load.Trial.of([self.answer(0.01, [0.002, 0.002]), self.answer(0.03, [0.004, 0.006])], 3, 0.01)
        other = load.Trial.of([self.answer(0.05, [0.001, 0.001]), self.answer(0.02, [], tokens=1)], 3, 0.01)
        self.assertEqual(len(other.errors), 1)  # it is too short
        first, gap, rate, errors = load.rows_of(load.Work(2, 0, 8, 3), [one, other])
        self.assertEqual((first["samples"], first["p99"], first["unit"]), ([20.0, 50.0], 50.0, "ms"))
        self.assertEqual((gap["samples"], gap["p99"]), ([3.0, 1.0], 6.0))
        self.assertAlmostEqual(rate["samples"][0], 6 / 0.04, places=3)
        self.assertEqual((errors["count"], errors["of"], errors["first"]), (1, 4, "1 tokens; expected 3"))
        better = load.ratios(load.Work(2, 0, 8, 3), "x", [first, gap, rate, errors],
                             [first | {"samples": [40.0, 50.0]}, gap, rate | {"samples": [1.0, 2.0]}, errors])
        self.assertEqual([row["name"] for row in better],
                         [f"{name}, better than x" for name in ("first token", "gap", "throughput")])
        self.assertEqual(better[0]["samples"], [2.0, 1.0])
        self.assertGreater(better[2]["samples"][0], 100)


class Runs(unittest.TestCase):
    def test_two_servers_are_asked_in_turns(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.jsonl"
            done = subprocess.run([sys.executable, "-B", FOLDER / "load.py", "--server", f"dendrite={ECHO}", "--server",
                                   f"other={ECHO} --port {{port}}", "--streams", "1,3", "--shared", "0,20", "--own", "4",
                                   "--length", "5", "--trials", "2", "--json", path],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            series = bench_samples.read(pathlib.Path(folder))
        self.assertEqual(len(series), 2 * 2 * (4 + 4 + 3))
        rows = [each for each in series if each.name == "first token" and each.side == "dendrite"]
        self.assertEqual([each.params["streams"] for each in rows], [1, 3, 1, 3])
        self.assertEqual([len(each.samples) for each in rows], [2] * 4)
        self.assertIsNotNone(bench_samples.partner(series, rows[0], "other"))
        errors = [each.row for each in series if each.name == "errors"]
        self.assertEqual({(row["count"], row["first"]) for row in errors}, {(0, None)})

    def test_a_server_that_ends_is_told_of(self):
        with self.assertRaisesRegex(SystemExit, "(?s)none: it ended with status 3.*no such model"):
            servers.Server("none=echo no such model; exit 3").start(10)


if __name__ == "__main__":
    unittest.main()
