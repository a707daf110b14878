"""lm-evaluation-harness against dendrite serve: log-likelihoods of completions, and what it generates."""
import contextlib
import functools
import io
import json
import operator
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from served import MODELS, served

# Before it is imported: nothing is looked up elsewhere, and nothing is left in the home folder.
HOME = tempfile.TemporaryDirectory()
os.environ.update(HF_HOME=HOME.name, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", LOGLEVEL="ERROR")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

MODEL = "dendrite-24"
TASKS = {
    "judge": """
output_type: multiple_choice
doc_to_text: "<|bos|>P 24: {{numbers}}\\n?"
doc_to_choice: [sure, impossible]
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
""",
    "perplexity": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "P 24: {{numbers}}\\n"
metric_list: [{metric: byte_perplexity}]
""",
    "solve": """
output_type: generate_until
doc_to_text: "<|bos|>S 24: {{numbers}}\\n"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [ok], max_gen_toks: 100, do_sample: false}
metric_list: [{metric: exact_match}]
""",
    "chat": """
output_type: generate_until
doc_to_text: "{{numbers}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [ok], max_gen_toks: 100, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def dendrite(*words):
    """What the command line says, as JSON."""
    command = [os.environ["DENDRITE_PROGRAM"], words[0], "--json", "--model", str(MODELS / MODEL), *words[1:]]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def ids_of(text):
    """As the harness gets them of the server: a "<|bos|>" in it is parsed, and none is added."""
    command = [os.environ["DENDRITE_PROGRAM"], "tokenize", "--json", "--no-special", "--model", str(MODELS / MODEL)]
    done = subprocess.run(command, input=text, capture_output=True, check=True, text=True)
    return ",".join(map(str, json.loads(done.stdout)["ids"]))


class LMEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(HOME.name) / "tasks"
        cls.folder.mkdir()
        lines = (MODELS / MODEL / "game24_heldout.txt").read_text().splitlines()
        games = [line.split(" ", 1) for line in lines if not line.startswith("#")][::24]
        rows = [{"numbers": numbers, "label": 1 - int(solvable)} for solvable, numbers in games]
        for row in rows:
            row["answer"] = dendrite("generate", "--prompt", f"S 24: {row['numbers']}\n", "--temperature", "0",
                                     "--max-tokens", "100", "--stop", "ok")["branches"][0]["text"]
        data = cls.folder / "games.json"
        data.write_text(json.dumps(rows))
        for name, task in TASKS.items():
            (cls.folder / f"{name}.yaml").write_text(
                f"task: {name}\ndataset_path: json\ntest_split: test\n"
                f'dataset_kwargs: {{data_files: {{test: "{data}"}}}}\n{task}')
        cls.server = served(MODEL)
        cls.url = cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)
        HOME.cleanup()

    def evaluate(self, *tasks, chat=False, batch=1, at_once=1):
        """By completions, or by chats."""
        with contextlib.redirect_stderr(io.StringIO()):  # progress
            path = "chat/completions" if chat else "completions"
            return lm_eval.simple_evaluate(
                f"local-{path.replace('/', '-')}", tasks=list(tasks), batch_size=batch,
                model_args={"model": MODEL, "base_url": f"{self.url}/v1/{path}", "num_concurrent": at_once,
                            "max_retries": 1, "max_length": 1024},
                apply_chat_template=chat, bootstrap_iters=0,
                task_manager=TaskManager(include_path=str(self.folder), include_defaults=False))

    def expect(self, response, context, text):
        """The numbers of `dendrite score`."""
        scored = dendrite("score", "--prompt-ids", context, "--continuation", text)["scores"][0]
        self.assertEqual(functools.reduce(operator.add, scored["tokens"], 0.0), scored["logprob"])
        # The harness adds them up; from Python 3.12 on sum() does not do so one after another.
        self.assertEqual(response, sum(scored["tokens"]))
        return scored["greedy"]

    def test_log_likelihoods_are_the_command_lines_to_the_bit(self):
        one = self.evaluate("judge", "perplexity")["samples"]
        greedy = set()
        for sample in one["judge"]:
            for (context, text), response in zip(sample["arguments"], sample["resps"], strict=True):
                is_greedy = self.expect(response[0][0], ids_of(context), text)
                self.assertEqual(response[0][1], is_greedy)
                greedy.add(is_greedy)
        self.assertEqual(greedy, {False, True})
        for sample in one["perplexity"]:
            self.expect(sample["resps"][0][0], ids_of("<|bos|>"), sample["arguments"][0][0])
        for batch, at_once in ((32, 1), (1, 16), (32, 16)):
            other = self.evaluate("judge", "perplexity", batch=batch, at_once=at_once)["samples"]
            for task, samples in one.items():
                self.assertEqual([sample["resps"] for sample in samples], [sample["resps"] for sample in other[task]])

    def test_generates(self):
        for batch, at_once in ((1, 1), (32, 1), (1, 16)):
            results = self.evaluate("solve", batch=batch, at_once=at_once)["results"]
            self.assertEqual(results["solve"]["exact_match,none"], 1)
        for at_once in (1, 16):
            results = self.evaluate("chat", chat=True, at_once=at_once)["results"]
            self.assertEqual(results["chat"]["exact_match,none"], 1)

    def test_program(self):
        out = self.folder / "out"
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
             f"model={MODEL},base_url={self.url}/v1/completions,num_concurrent=16", "--batch_size", "32",
             "--tasks", "judge,solve", "--include_path", str(self.folder), "--output_path", str(out)],
            capture_output=True, check=True)
        [file] = out.rglob("results_*.json")
        results = json.loads(file.read_text())["results"]
        self.assertEqual(results["solve"]["exact_match,none"], 1)
        self.assertEqual(results["judge"]["acc,none"], self.evaluate("judge")["results"]["judge"]["acc,none"])


if __name__ == "__main__":
    unittest.main()
