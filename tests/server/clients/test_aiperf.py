"""aiperf against dendrite serve: a load of each API without an error, and its counts of tokens."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from served import MODELS, served

REQUESTS = 12
USAGE = {"stream_options": {"include_usage": True}}
EXTRA = {"chat": USAGE, "completions": USAGE}


class AIPerfTest(unittest.TestCase):
    def load(self, url, folder, api):
        """What aiperf says of each request of a load that it made."""
        # (A folder's tokenizer is looked up nowhere, but not with HF_HUB_OFFLINE.)
        subprocess.run(
            [pathlib.Path(sys.executable).with_name("aiperf"), "profile", "--model", "m", "--url", url,
             "--tokenizer", MODELS / "dendrite-tools", "--endpoint-type", api, "--streaming",
             "--request-count", str(REQUESTS), "--concurrency", "4", "--isl", "100", "--osl", "20",
             "--extra-inputs", json.dumps(EXTRA.get(api, {}) | {"temperature": 0}), "--ui", "none",
             "--artifact-dir", folder],
            cwd=folder, env={**os.environ, "HOME": folder, "HF_HOME": folder}, check=True, capture_output=True)
        lines = (pathlib.Path(folder) / "profile_export.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def test_loads(self):
        with served("dendrite-tools", "--served-model-name", "m") as url:
            for api in ("chat", "completions", "responses", "messages"):
                with self.subTest(api=api), tempfile.TemporaryDirectory() as folder:
                    records = self.load(url, folder, api)
                    self.assertEqual(len(records), REQUESTS)
                    self.assertEqual([record["error"] for record in records if record.get("error")], [])
                    counts = [{name: metric["value"] for name, metric in record["metrics"].items()}
                              for record in records]
                    self.assertTrue(all(count["output_sequence_length"] == 20 for count in counts))
                    if api == "responses":  # all end with their limit, and it reads the usage of others alone
                        continue
                    self.assertTrue(all(count["usage_completion_tokens"] == 20 for count in counts))
                    # Its prompts, with what the template puts around them, and without the blanks it takes off.
                    around = {count["usage_prompt_tokens"] - count["input_sequence_length"] for count in counts}
                    self.assertLess(max(map(abs, around)), 6)
                    if api == "completions":
                        self.assertEqual(around, {1})  # BOS


if __name__ == "__main__":
    unittest.main()
