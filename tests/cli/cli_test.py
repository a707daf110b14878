"""The command line from outside: what programs that call it may rely on.

    cli_test.py PROGRAM TEST_DATA MODELS [unittest arguments]
"""
import array
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, DATA, MODELS = sys.argv[1:4]
TINY = os.path.join(DATA, "models", "llama2")  # with a tokenizer
QWEN = os.path.join(DATA, "models", "qwen3")
DRAFTER = os.path.join(DATA, "drafters", "qwen3_full")  # for that
SHIPPED = os.path.join(MODELS, "dendrite-24")
TOOLS = os.path.join(MODELS, "dendrite-tools")


def run(*args, stdin=b"", timeout=120):
    """Exit status, stdout and stderr of the program."""
    done = subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, timeout=timeout)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def golden(model, tensor):
    """The numbers of an I32 tensor of golden.safetensors."""
    with open(os.path.join(DATA, "models", model, "golden.safetensors"), "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])[tensor]["data_offsets"]
    return list(array.array("i", data[8 + size + begin:8 + size + end]))


def hybrid_with_head(folder):
    """A hybrid with an MTP head in its files, and a tokenizer."""
    models = os.path.join(DATA, "models")
    shards = {"model-1.safetensors": os.path.join(models, "qwen3_5_text"),
              "model-2.safetensors": os.path.join(DATA, "drafters", "qwen3_5_text_mtp")}
    names = {}
    for shard, source in shards.items():
        path = shutil.copy(os.path.join(source, "model.safetensors"), os.path.join(folder, shard))
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        names |= {name: shard for name in header if name != "__metadata__"}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"weight_map": names}, file)
    shutil.copy(os.path.join(models, "qwen3_5_text", "config.json"), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(models, "llama_vocab_padded", name), folder)
    return folder


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dendrite-cli-")
        self.addCleanup(shutil.rmtree, self.folder)

    def json_of(self, *args, stdin=b""):
        """Runs with --json: one object on one line of stdout, exit status 0."""
        status, out, err = run(*args, "--json", stdin=stdin)
        self.assertEqual(status, 0, err)
        return self.parse(out)

    def parse(self, out):
        self.assertTrue(out.endswith("\n"), out)
        self.assertEqual(out.count("\n"), 1, out)
        value = json.loads(out)
        self.assertIsInstance(value, dict)
        return value

    def assert_error(self, *args, part="", status=1, stdin=b""):
        begin = time.monotonic()
        got, out, err = run(*args, stdin=stdin)
        self.assertEqual(got, status, f"{args}: {err}")
        self.assertEqual(out, "", args)
        self.assertLessEqual(err.count("\n"), 4, err)
        self.assertTrue(err.strip(), "no message")
        self.assertIn(part, err)
        self.assertLess(time.monotonic() - begin, 30)  # 10 s on a machine that does nothing else
        return err

    def copy_of(self, model, *, without=(), config=None):
        """A copy of a model's folder, with some keys of its config.json changed (None: removed)."""
        path = os.path.join(self.folder, f"model{len(os.listdir(self.folder))}")
        shutil.copytree(os.path.join(DATA, "models", model), path,
                        ignore=shutil.ignore_patterns("golden*", *without))
        if config is not None:
            file = os.path.join(path, "config.json")
            with open(file) as source:
                values = json.load(source)
            for key, value in config.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            with open(file, "w") as target:
                json.dump(values, target)
        return path

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path


class Generate(CliTest):
    def test_greedy_tokens_are_those_of_transformers(self):
        prompt = golden("llama2", "input_ids")[:33]
        out = self.json_of("generate", "--model", TINY, "--dtype", "f32", "--prompt-ids",
                           ",".join(map(str, prompt)), "--max-tokens", 64, "--temperature", 0,
                           "--ignore-eos")
        self.assertEqual(out["prompt_ids"], prompt)
        self.assertEqual([len(b["ids"]) for b in out["branches"]], [64])
        self.assertEqual(out["branches"][0]["ids"], golden("llama2", "greedy_ids"))
        self.assertEqual(out["branches"][0]["finish"], "length")

    def test_ends_at_eos_unless_told_otherwise(self):
        prompt = ",".join(map(str, golden("qwen2", "input_ids")[:33]))
        args = ["generate", "--model", os.path.join(DATA, "models", "qwen2"), "--dtype", "f32",
                "--prompt-ids", prompt, "--max-tokens", 64, "--temperature", 0]
        branch = self.json_of(*args)["branches"][0]
        self.assertEqual(branch["finish"], "eos")
        self.assertEqual(branch["ids"], golden("qwen2", "greedy_ids")[:25])
        self.assertEqual(len(self.json_of(*args, "--ignore-eos")["branches"][0]["ids"]), 64)

    def test_logprobs_belong_to_the_ids_and_round_trip(self):
        out = self.json_of("generate", "--model", TINY, "--prompt", "ab", "--max-tokens", 9,
                           "--temperature", 0.7, "--top-k", 5, "--repetition-penalty", 1.2,
                           "--top-logprobs", 3, "--seed", 4, "--ignore-eos")
        branch = out["branches"][0]
        self.assertEqual(len(branch["logprobs"]), 9)
        for id, entry in zip(branch["ids"], branch["logprobs"]):
            self.assertEqual(entry["id"], id)
            self.assertEqual(len(entry["top"]), 3)
            values = [value for _, value in entry["top"]]
            self.assertEqual(values, sorted(values, reverse=True))
            for value in values + [entry["logprob"]]:
                self.assertLessEqual(value, 0)
                # Written with enough digits to be the same f32 again.
                self.assertEqual(struct.unpack("f", struct.pack("f", value))[0], value)
        self.assertEqual(branch["text"], self.json_of(
            "tokenize", "--model", TINY, "--decode", stdin=" ".join(map(str, branch["ids"])).encode())["text"])

    def test_score_gives_the_logprobs_of_generate(self):
        for flags in ([], ["--dtype", "f32"], ["--page-tokens", 8, "--threads", 2]):
            out = self.json_of("generate", "--model", TINY, "--prompt", "Once", "--max-tokens", 20,
                               "--temperature", 1, "--seed", 3, "--ignore-eos", *flags)
            branch = out["branches"][0]
            score = self.json_of("score", "--model", TINY, "--prompt", "Once", "--continuation-ids",
                                 ",".join(map(str, branch["ids"])), "--continuation-ids",
                                 str(branch["ids"][0]), *flags)["scores"]
            logprobs = [entry["logprob"] for entry in branch["logprobs"]]
            self.assertEqual(score[0]["tokens"], logprobs)  # to the last bit
            self.assertEqual(score[1]["tokens"], logprobs[:1])
            self.assertAlmostEqual(score[0]["logprob"], sum(logprobs), places=9)

    def test_branches_share_a_prompt_and_differ(self):
        args = ["generate", "--model", TINY, "--prompt", "Once upon a time", "--max-tokens", 12,
                "--temperature", 1, "--ignore-eos", "--n", 6]
        out = self.json_of(*args, "--seed", 1)
        texts = [tuple(branch["ids"]) for branch in out["branches"]]
        self.assertEqual(len(texts), 6)
        self.assertEqual(len(set(texts)), 6)
        prompt = len(out["prompt_ids"])
        self.assertLessEqual(out["stats"]["tokens_computed"], prompt + 6 * 12)
        self.assertEqual(out["stats"]["tokens_independent"], prompt + 6 * (prompt + 11))
        moved = ["tokens_moved", "tokens_repaired", "compositions"]
        self.assertEqual([out["stats"][name] for name in moved], [0, 0, 0])
        self.assertEqual(texts, [tuple(b["ids"]) for b in self.json_of(*args, "--seed", 1)["branches"]])
        self.assertNotEqual(texts, [tuple(b["ids"]) for b in self.json_of(*args, "--seed", 2)["branches"]])
        greedy = self.json_of("generate", "--model", TINY, "--prompt", "Once upon a time", "--max-tokens", 12,
                              "--temperature", 0, "--n", 3)["branches"]
        self.assertEqual(greedy[0]["ids"], greedy[1]["ids"])
        self.assertEqual(greedy[0]["ids"], greedy[2]["ids"])

    def test_results_do_not_depend_on_threads_pages_or_pool(self):
        args = ["generate", "--model", TINY, "--prompt", "x" * 70, "--max-tokens", 30, "--temperature", 1,
                "--seed", 8, "--n", 3, "--ignore-eos"]
        expected = self.json_of(*args)["branches"]
        for flags in (["--threads", 1], ["--threads", 3], ["--page-tokens", 8], ["--page-tokens", 32],
                      ["--kv-tokens", 512], ["--deterministic"], ["--fast"]):
            self.assertEqual(self.json_of(*args, *flags)["branches"], expected, flags)

    def test_prompt_may_come_from_stdin(self):
        args = ["generate", "--model", TINY, "--max-tokens", 5, "--temperature", 0]
        text = "Once\n"
        expected = self.json_of(*args, "--prompt", text)
        got = self.json_of(*args, stdin=text.encode())
        self.assertEqual(got["prompt_ids"], expected["prompt_ids"])
        self.assertEqual(got["branches"], expected["branches"])
        self.assertEqual(got["prompt_ids"][0], 1)  # BOS

    def test_stop_strings_and_bias(self):
        ids = [self.json_of("tokenize", "--model", TINY, "--no-special", stdin=c)["ids"][0] for c in (b"a", b"b")]
        args = ["generate", "--model", TINY, "--prompt", "x", "--max-tokens", 60, "--temperature", 1,
                "--ignore-eos", "--logit-bias", f"{ids[0]}:100", "--logit-bias", f"{ids[1]}:100"]
        text = self.json_of(*args)["branches"][0]["text"]
        self.assertRegex(text, "^[ab]{60}$")
        stop = text[20:26]
        branch = self.json_of(*args, "--stop", "zzz", "--stop", stop)["branches"][0]
        self.assertEqual(branch["finish"], "stop")
        self.assertEqual(branch["stop"], stop)
        self.assertEqual(branch["text"], text[:text.index(stop)])
        self.assertEqual(len(branch["ids"]), text.index(stop) + 6)

    def test_a_block_drafter_changes_no_token(self):
        args = ["generate", "--model", QWEN, "--prompt", "ababab", "--max-tokens", 30, "--temperature", 1, "--n", 2]
        plain = self.json_of(*args)["branches"]
        args += ["--drafter", DRAFTER]
        self.assertEqual(self.json_of(*args, "--speculate", "dflash")["branches"], plain)
        args += ["--speculate", "dflash_ddtree", "--speculate-budget", 12]
        self.assertEqual(self.json_of(*args, "--speculate-tokens", 6, "--speculate-top-k", 4, "--speculate-temperature", 1.5,
                                      "--speculate-chain-seed", "true")["branches"], plain)
        status, _, err = run(*args, "--speculate-tokens", 13)
        self.assertNotEqual(status, 0)
        self.assertIn("speculate_tokens is 13; expected no more than speculate_budget, 12", err)

    def test_an_mtp_head_changes_no_token(self):
        model = hybrid_with_head(self.folder)
        self.assertEqual(self.json_of("info", "--model", model)["model"]["mtp_layers"], 1)
        args = ["generate", "--model", model, "--prompt", "ababab", "--max-tokens", 30, "--temperature", 1, "--n", 2]
        plain = self.json_of(*args)["branches"]
        for method in ("mtp", "suffix_mtp"):
            self.assertEqual(self.json_of(*args, "--drafter", "mtp", "--speculate", method)["branches"], plain)
        self.assert_error(*args, "--speculate", "mtp", part="has no MTP head")
        self.assert_error("generate", "--model", QWEN, "--prompt", "x", "--drafter", "mtp", part="has no MTP head")

    def test_drafts_change_no_token(self):
        args = ["generate", "--model", TINY, "--prompt", "ababab", "--max-tokens", 30, "--temperature", 1, "--n", 2]
        plain = self.json_of(*args)["branches"]
        self.assertEqual(self.json_of(*args, "--speculate", "suffix")["branches"], plain)
        drafted = self.json_of(*args, "--speculate", "draft_model", "--draft-model", TINY, "--speculate-budget", 4)
        self.assertEqual(drafted["branches"], plain)
        stats = drafted["stats"]
        counts = stats["speculation"]
        self.assertEqual(stats["tokens_drafted"],
                         stats["tokens_accepted"] - counts["tokens_shared"] + counts["tokens_wasted"])
        self.assertEqual(sum(stats["speculation"]["accept_depth_by_position"]), stats["tokens_accepted"])
        for flags, why in ((["--speculate", "magic"], "expected off, suffix, draft_model, dflash, dflash_ddtree, suffix_dflash, mtp or suffix_mtp"),
                           (["--speculate", "draft_model"], "the engine has none"),
                           (["--speculate", "dflash"], "the engine has no drafter"),
                           (["--drafter", TINY], "architectures"),
                           (["--draft-model", SHIPPED], "expected")):
            status, _, err = run(*args, *flags)
            self.assertNotEqual(status, 0)
            self.assertIn(why, err)

    def test_zero_tokens_is_a_length(self):
        branch = self.json_of("generate", "--model", TINY, "--prompt", "x", "--max-tokens", 0)["branches"][0]
        self.assertEqual((branch["ids"], branch["finish"], branch["logprobs"]), ([], "length", []))

    def test_text_for_people_is_the_text_of_json(self):
        args = ["generate", "--model", SHIPPED, "--prompt", "S 24: 4 5 6 10\n", "--max-tokens", 40, "--temperature", 0]
        status, out, _ = run(*args)
        self.assertEqual(status, 0)
        self.assertEqual(out, self.json_of(*args)["branches"][0]["text"] + "\n")

    def test_model_without_tokenizer_takes_ids(self):
        tiny = os.path.join(DATA, "models", "tinyllama")
        branch = self.json_of("generate", "--model", tiny, "--prompt-ids", "1 2 3", "--max-tokens", 4,
                              "--temperature", 0, "--ignore-eos")["branches"][0]
        self.assertEqual(len(branch["ids"]), 4)
        self.assert_error("generate", "--model", tiny, "--prompt", "x", part="tokenizer.json")

    def test_small_pools_are_a_status(self):
        branch = self.json_of("generate", "--model", TINY, "--prompt", "x" * 20, "--kv-tokens", 48,
                              "--max-tokens", 100, "--temperature", 0, "--ignore-eos")["branches"][0]
        self.assertEqual(branch["finish"], "budget")
        self.assertGreater(len(branch["ids"]), 10)

    def test_dummy_weights_need_a_config_alone(self):
        path = self.copy_of("qwen3", without=["*.safetensors"])
        out = self.json_of("generate", "--model", path, "--load-format", "dummy", "--prompt-ids", "1,2,3",
                           "--max-tokens", 3, "--ignore-eos")
        self.assertEqual(len(out["branches"][0]["ids"]), 3)
        self.assertTrue(out["dummy_weights"])


class Constraints(CliTest):
    """What generated text must be."""

    ARGS = ["generate", "--model", TINY, "--prompt", "ab", "--temperature", 1.5, "--n", 6]
    SCHEMA = {"type": "object", "additionalProperties": False, "required": ["on", "name", "size"], "properties": {
        "on": {"type": "boolean"}, "name": {"type": "string", "maxLength": 6}, "size": {"enum": ["small", 3]}}}
    ALARM = ["generate", "--model", TOOLS, "--prompt", "<|call|>Set an alarm for 7:30 pm on Sunday.\n"]

    def schema(self, value=None):
        return self.write("schema.json", json.dumps(value or self.SCHEMA))

    def texts(self, *flags):
        branches = self.json_of(*self.ARGS, *flags)["branches"]
        self.assertEqual({branch["finish"] for branch in branches}, {"stop"})
        return [branch["text"] for branch in branches]

    def test_texts_are_what_the_flag_says(self):
        for text in self.texts("--json-schema", self.schema()):
            value = json.loads(text)
            self.assertEqual(list(value), ["on", "name", "size"])
            self.assertIsInstance(value["on"], bool)
            self.assertLessEqual(len(value["name"]), 6)
            self.assertIn(value["size"], ["small", 3])
            self.assertEqual(text, json.dumps(value, separators=(",", ":"), ensure_ascii=False))
        for text in self.texts("--regex", "[a-f]{3}(-[0-9]{2}){1,2};"):
            self.assertRegex(text, r"^[a-f]{3}(-[0-9]{2}){1,2};$")
        grammar = self.write("sum.lark", 'start: NUMBER (" + " NUMBER)* "\\n"\nNUMBER: /[0-9]{1,2}/\n')
        for text in self.texts("--grammar", grammar):
            self.assertRegex(text, r"^[0-9]{1,2}( \+ [0-9]{1,2})*\n$")
        choices = ["yes", "no", "ünknown \"\n"]
        texts = self.texts(*(flag for choice in choices for flag in ("--choice", choice)))
        self.assertLessEqual(set(texts), set(choices))

    def test_what_a_model_would_write_anyway_it_writes(self):
        call = '{"name":"set_alarm","arguments":{"time":"19:30","day":"sunday"}}'
        for flags in ([], ["--json-object"], ["--regex", "[{].*[}]"], ["--choice", call, "--choice", "{}"]):
            branch = self.json_of(*self.ALARM, "--temperature", 0, *flags)["branches"][0]
            self.assertEqual(branch["text"], call, flags)

    def test_ids_and_logprobs_are_the_models_own(self):
        out = self.json_of(*self.ARGS, "--regex", "[a-f]{9}", "--top-logprobs", 2)
        for branch in out["branches"]:
            score = self.json_of("score", "--model", TINY, "--prompt", "ab", "--continuation-ids",
                                 ",".join(map(str, branch["ids"])))["scores"][0]
            self.assertEqual(score["tokens"], [entry["logprob"] for entry in branch["logprobs"]])
            self.assertEqual(branch["text"], self.json_of(
                "tokenize", "--model", TINY, "--decode", stdin=" ".join(map(str, branch["ids"])).encode())["text"])
        # The likeliest are those of all tokens, not of the allowed ones.
        free = self.json_of(*self.ARGS, "--top-logprobs", 2, "--max-tokens", 1)
        self.assertEqual(out["branches"][0]["logprobs"][0]["top"], free["branches"][0]["logprobs"][0]["top"])

    def test_texts_cut_short_are_a_length_and_a_note(self):
        args = [*self.ARGS, "--json-schema", self.schema(), "--max-tokens", 9]
        for branch in self.json_of(*args)["branches"]:
            self.assertEqual((branch["finish"], len(branch["ids"])), ("length", 9))
        status, out, err = run(*args)
        self.assertEqual((status, out.count("--- branch")), (0, 6))
        self.assertIn("6 of 6 texts ended before", err)
        self.assertIn("length", err)
        # This may end there, whatever else could follow.
        self.assertEqual(run(*self.ARGS, "--regex", "[0-9]+", "--max-tokens", 4)[2], "")

    def test_stops_and_eos_beside_it(self):
        args = [*self.ARGS, "--regex", "[ab]{30}"]
        for branch in self.json_of(*args, "--stop", "ab")["branches"]:
            self.assertEqual(branch["finish"], "stop" if len(branch["text"]) == 30 else "stop_inside")
            self.assertRegex(branch["text"], "^b*a*$")
        # `stop` only where what is left is whole.
        object_ = ["--regex", r'\{"name":\{"a":1\}\}']
        for stop, text in ((":", '{"name"'), ("}", '{"name":{"a":1')):
            branches = self.json_of(*self.ARGS, *object_, "--stop", stop)["branches"]
            self.assertEqual({(b["text"], b["finish"]) for b in branches}, {(text, "stop_inside")})
        self.assertIn("stop_inside", run(*self.ARGS, *object_, "--stop", ":")[2])
        never = ["--logit-bias", f"{self.json_of('info', '--model', TINY)['model']['eos'][0]}:-inf"]
        for branch in self.json_of(*self.ARGS, "--regex", "ok(;)?", "--stop", ";", *never)["branches"]:
            self.assertEqual((branch["text"], branch["finish"]), ("ok", "stop"))
        eos = self.json_of("info", "--model", TINY)["model"]["eos"][0]
        often = ["--logit-bias", f"{eos}:100"]
        # An end-of-sequence token is drawn only where the text may end, and is part of the ids.
        for flags, length in (([], 30), (["--ignore-eos"], 30)):
            for branch in self.json_of(*args, *often, *flags)["branches"]:
                self.assertEqual((len(branch["text"]), len(branch["ids"])), (length, 30))
        for branch in self.json_of(*self.ARGS, "--regex", "[ab]{3,30}", *often)["branches"]:
            self.assertEqual((branch["finish"], len(branch["text"]), len(branch["ids"])), ("stop", 3, 4))

    def test_what_a_bias_bans_is_not_drawn(self):
        def ban(text):
            ids = self.json_of("tokenize", "--model", TINY, "--no-special", stdin=text.encode())["ids"]
            return [flag for id_ in ids for flag in ("--logit-bias", f"{id_}:-inf")]

        for regex, banned, text in (("[ab]c", "ab", ""), ("x[ab]", "ab", "x"), ("abc", "a", "")):
            for temperature in (0, 1):
                flags = ["--regex", regex, *ban(banned), "--temperature", temperature]
                for branch in self.json_of(*self.ARGS[:5], *flags)["branches"]:
                    self.assertEqual((branch["text"], branch["finish"]), (text, "dead_end"))
        for branch in self.json_of(*self.ARGS, "--choice", "ab", "--choice", "cd", *ban("a"))["branches"]:
            self.assertEqual((branch["text"], branch["finish"]), ("cd", "stop"))

    def test_people_see_the_same_text(self):
        # There, what the constraint leaves no choice about takes no steps of its own.
        args = [*self.ARGS[:-2], "--json-schema", self.schema(), "--seed", 5]
        self.assertEqual(run(*args)[1], self.json_of(*args)["branches"][0]["text"] + "\n")

    def test_a_text_that_cannot_go_on_is_a_dead_end(self):
        # After nine letters there are more ways to go on than the limits of a grammar admit.
        args = [*self.ARGS[:-2], "--regex", "[xy]{9}(a{1,60}){40,80}b"]
        branch = self.json_of(*args)["branches"][0]
        self.assertEqual(branch["finish"], "dead_end")
        self.assertRegex(branch["text"], "^[xy]{9}$")
        status, out, err = run(*args)
        self.assertEqual((status, out), (0, branch["text"] + "\n"))
        self.assertIn("dead_end", err)

    def test_a_grammar_without_an_end_is_refused(self):
        one = self.write("one.lark", 'start: "ab" x | "c"\nx: y "z"\ny: y\n')
        status, out, err = run(*self.ARGS[:-2], "--grammar", one)
        self.assertEqual((status, out), (0, "c\n"))  # the way that has none is left out
        grammar = self.write("dead.lark", 'start: "ab" x\nx: y "z"\ny: y\n')
        status, out, err = run(*self.ARGS[:-2], "--grammar", grammar)
        self.assertEqual((status != 0, out), (True, ""))
        self.assertIn("expected one", err)

    def test_resume_goes_on_inside(self):
        file = os.path.join(self.folder, "tree.snap")
        flags = ["--json-schema", self.schema(), "--seed", 3]
        whole = self.json_of(*self.ARGS, *flags)["branches"]
        first = self.json_of(*self.ARGS, *flags, "--max-tokens", 13, "--save", file)["branches"]
        self.assertEqual({branch["finish"] for branch in first}, {"length"})
        resume = ["generate", "--model", TINY, "--temperature", 1.5, "--resume", file]
        rest = self.json_of(*resume, "--save", file)["branches"]
        self.assertEqual([a["ids"] + b["ids"] for a, b in zip(first, rest)], [b["ids"] for b in whole])
        self.assertEqual({branch["finish"] for branch in rest}, {"stop"})
        # What is whole stays so, until a flag begins a new text behind it.
        for branch in self.json_of(*resume)["branches"]:
            self.assertEqual((branch["finish"], branch["ids"]), ("stop", []))
        for branch in self.json_of(*resume, "--regex", "[0-9]{5}")["branches"]:
            self.assertRegex(branch["text"], "^[0-9]{5}$")
        # So it does inside of a text.
        self.json_of(*self.ARGS, *flags, "--max-tokens", 13, "--save", file)
        for branch in self.json_of(*resume, "--choice", "ok")["branches"]:
            self.assertEqual((branch["finish"], branch["text"]), ("stop", "ok"))

    def test_two_of_them_are_wrong_usage(self):
        flags = (["--json-schema", "x"], ["--json-object"], ["--regex", "x"], ["--grammar", "x"], ["--choice", "x"])
        for one in flags:
            for other in flags:
                if one is not other:
                    self.assert_error(*self.ARGS, *one, *other, status=2, part=one[0])
        self.assert_error("chat", "--json-schema", "x", "--json-object", status=2, part="--json-object")
        for flag in ("--json-schema", "--regex", "--grammar", "--choice"):
            self.assert_error(*self.ARGS, flag, status=2, part=flag)

    def test_what_cannot_be_is_refused(self):
        for schema in ("", "{", "[]", "false", '{"type": "nonsense"}', '{"not": {}}', '{"uniqueItems": true}',
                       '{"type": "integer", "minimum": 5, "maximum": 3}', '{"enum": []}', '{"$ref": "#"}',
                       '{"$ref": "https://example.org/x"}', '{"type": "string", "pattern": "("}',
                       '{"allOf": [{"type": "string"}, {"type": "integer"}]}', b'{"const": "\xff"}',
                       '{"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}'):
            file = self.write("schema.json", schema)
            for command in (self.ARGS, ["chat", "--model", SHIPPED]):
                self.assert_error(*command, "--json-schema", file, part=f"--json-schema {file}: ")
        for regex in ("(", "[", "a{2,1}", "(?=a)b", r"(?P<n>a)(?P=n)", "\\", r"[^\x00-\u{10FFFF}]"):
            self.assert_error(*self.ARGS, "--regex", regex, part="--regex: ")
        for grammar in ("", "start: b", "start: (", 'start: "a" /', "start: a\na: a", "start: <|nope|>",
                        'start: %json {"type": 3}'):
            file = self.write("grammar.lark", grammar)
            self.assert_error(*self.ARGS, "--grammar", file, part=f"--grammar {file}: ")
        self.assert_error(*self.ARGS, "--choice", "a", "--choice", "", part="--choice: ")
        none = os.path.join(self.folder, "none.json")
        for path in (none, self.folder):
            self.assert_error(*self.ARGS, "--json-schema", path, part=path)
            self.assert_error(*self.ARGS, "--grammar", path, part=path)
        ids = ["generate", "--model", os.path.join(DATA, "models", "tinyllama"), "--prompt-ids", "1,2"]
        self.assert_error(*ids, "--json-object", part="tokenizer.json")

    def test_what_is_meant_to_break_it_does_not(self):
        for flag, text in (("--json-schema", '{"anyOf":[' * 50000 + "{}" + "]}" * 50000),
                           ("--json-schema", '{"enum":[' + ",".join(map(str, range(300000))) + "]}"),
                           ("--json-schema", '{"additionalProperties":false,"properties":{' +
                            ",".join(f'"a{i}":{{"type":"string"}}' for i in range(20000)) + "}}"),
                           ("--grammar", "start: " + "(" * 20000 + '"a"' + ")" * 20000),
                           ("--grammar", 'start: "a" start')):
            file = self.write("hostile", text)
            self.assert_error(*self.ARGS, flag, file, part=f"{flag} {file}: ")
        self.assert_error(*self.ARGS, "--regex", "(a{1000}){1000}", part="--regex: ")
        # These are odd, and can be met.
        for regex in ("(a|b)*a(a|b){5000}", "((((a{0,100}){0,100}){0,100}){0,100}){0,100}", "(.*a){20}"):
            self.assertEqual(len(self.json_of(*self.ARGS, "--regex", regex, "--max-tokens", 9)["branches"]), 6)

    def test_every_answer_of_a_chat_is_held_to_it(self):
        file = self.schema()
        chat = ["chat", "--model", SHIPPED, "--temperature", 1, "--json-schema", file, "--max-tokens", 99]
        saved = os.path.join(self.folder, "chat.snap")
        talk = f"4 5 6 10\nagain\n/back 2\n4 5 6 10\n/fork\nonce more\n/save {saved}\n"
        status, out, err = run(*chat, stdin=talk.encode())
        self.assertEqual((status, err), (0, ""))
        answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        self.assertEqual([list(answer) for answer in answers], [["on", "name", "size"]] * 4)
        status, out, err = run(*chat, "--resume", saved, stdin=b"and more\n")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(list(json.loads(out)), ["on", "name", "size"])
        _, _, err = run(*chat[:-1], 9, stdin=b"4 5 6 10\n")
        self.assertIn("1 of 1 texts ended before", err)

    def test_a_chat_goes_on_where_a_template_cuts_answers(self):
        model = self.copy_of("llama2")
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write("{% for m in messages %}{{ m.content[:5] if m.role == 'assistant' else m.content }}!{% endfor %}")
        status, out, err = run("chat", "--model", model, "--temperature", 1, "--json-schema", self.schema(),
                               stdin=b"a\nb\n")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual([list(json.loads(line)) for line in out.splitlines()], [["on", "name", "size"]] * 2)


class Interrupt(CliTest):
    def interrupted(self, *args):
        process = subprocess.Popen([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.5)
        self.assertIsNone(process.poll(), "it ended by itself")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        return process.returncode, out.decode(), err.decode()

    def test_ctrl_c_ends_generate_with_130_and_what_there_is(self):
        status, out, err = self.interrupted(
            "generate", "--model", TINY, "--prompt", "x", "--max-tokens", 10_000_000, "--kv-tokens", 400_000,
            "--temperature", 1, "--ignore-eos", "--json")
        self.assertEqual(status, 130, err)
        branch = self.parse(out)["branches"][0]
        self.assertEqual(branch["finish"], "cancelled")
        self.assertGreater(len(branch["ids"]), 0)

    def test_ctrl_c_ends_a_stream_too(self):
        status, out, _ = self.interrupted(
            "generate", "--model", TINY, "--prompt", "x", "--max-tokens", 10_000_000, "--kv-tokens", 400_000,
            "--temperature", 1, "--ignore-eos")
        self.assertEqual(status, 130)
        self.assertTrue(out)


class Snapshots(CliTest):
    PARAMS = ["--model", TINY, "--temperature", 0.9, "--repetition-penalty", 1.1, "--ignore-eos"]

    def test_resume_goes_on_as_if_nothing_had_been(self):
        file = os.path.join(self.folder, "tree.snap")
        whole = self.json_of("generate", *self.PARAMS, "--prompt", "ab", "--n", 3, "--seed", 5,
                             "--max-tokens", 20)
        first = self.json_of("generate", *self.PARAMS, "--prompt", "ab", "--n", 3, "--seed", 5,
                             "--max-tokens", 8, "--save", file)
        rest = self.json_of("generate", *self.PARAMS, "--resume", file, "--max-tokens", 12)
        self.assertEqual(rest["prompt_ids"], whole["prompt_ids"])
        self.assertEqual([a["ids"] + b["ids"] for a, b in zip(first["branches"], rest["branches"])],
                         [b["ids"] for b in whole["branches"]])
        self.assertEqual(os.listdir(self.folder), ["tree.snap"])
        # Resumed and saved again, onto the same file; with pages of another size K and V go.
        again = ["generate", *self.PARAMS, "--resume", file, "--save", file, "--max-tokens"]
        six = self.json_of(*again, 6)
        status, out, err = run(*again, 6, "--page-tokens", 8, "--json")
        self.assertEqual(status, 0, err)
        self.assertIn("page size", err)
        other_six = self.parse(out)
        self.assertEqual([a["ids"] + b["ids"] for a, b in zip(six["branches"], other_six["branches"])],
                         [b["ids"] for b in rest["branches"]])

    def test_text_for_people_goes_on_too(self):
        file = os.path.join(self.folder, "tree.snap")
        args = ["generate", "--model", SHIPPED, "--temperature", 0]
        _, whole, _ = run(*args, "--prompt", "S 24: 4 5 6 10\n", "--max-tokens", 20)
        _, first, _ = run(*args, "--prompt", "S 24: 4 5 6 10\n", "--max-tokens", 6, "--save", file)
        _, rest, _ = run(*args, "--resume", file, "--max-tokens", 14)
        self.assertEqual(first[:-1] + rest, whole)

    def test_a_prompt_beside_resume_is_wrong_usage(self):
        file = os.path.join(self.folder, "tree.snap")
        run("generate", *self.PARAMS, "--prompt", "ab", "--max-tokens", 2, "--save", file)
        for flags in (["--prompt", "x"], ["--prompt-ids", "1,2"], ["--messages", "x"], ["--n", 2]):
            self.assert_error("generate", *self.PARAMS, "--resume", file, *flags, status=2,
                              part="--resume")

    def test_what_is_no_snapshot_is_refused(self):
        file = os.path.join(self.folder, "tree.snap")
        none = os.path.join(self.folder, "none", "tree.snap")
        save = ["generate", *self.PARAMS, "--prompt", "ab", "--max-tokens", 2, "--json", "--save"]
        self.assert_error(*save, none, part=none)
        self.assertEqual(run(*save, file)[0], 0)
        resume = ["generate", *self.PARAMS, "--resume"]
        self.assert_error(*resume, none, part=none)
        self.assert_error(*resume, self.write("text", "x" * 999), part="is no snapshot")
        with open(file, "rb") as source:
            data = source.read()
        self.assert_error(*resume, self.write("cut", data[:-9]), part="truncated")
        self.assert_error(*resume, self.write("version", data[:8] + b"\x63" + data[9:]),
                          part="format version 99")
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1:]
        self.assert_error(*resume, self.write("flipped", flipped), part="damaged")
        self.assert_error("generate", "--model", os.path.join(DATA, "models", "qwen2"), "--resume",
                          file, part="another model")

    def test_chat_saves_its_conversations(self):
        file = os.path.join(self.folder, "chat.snap")
        talk = f"/save {file}\nhi\n/fork\n/save {file}\n/save {self.folder}/none/x\n/quit\n"
        status, out, err = run("chat", "--model", SHIPPED, "--max-tokens", 4, stdin=talk.encode())
        self.assertEqual(status, 0, err)
        self.assertIn("nothing to save yet", out)
        self.assertIn("saved 2 conversations", out)
        self.assertIn("not saved", out)
        rest = self.json_of("generate", "--model", SHIPPED, "--resume", file, "--max-tokens", 3)
        self.assertEqual(len(rest["branches"]), 2)

    def test_chat_goes_on_as_if_it_had_not_been_left(self):
        file = os.path.join(self.folder, "chat.snap")
        chat = ["chat", "--model", SHIPPED, "--max-tokens", 24, "--temperature", 0.8]
        before = "S 24: 4 5 6 10\n/fork\nhi \"ä\"\n/branch 1\n"
        after = "/branches\nagain\n/branch 2\nand again\n/fork\nonce more\n/back 2\n/branches\n"
        status, whole, err = run(*chat, "--seed", 3, stdin=(before + after).encode())
        self.assertEqual(status, 0, err)
        _, first, _ = run(*chat, "--seed", 3, stdin=f"{before}/save {file}\n".encode())
        first = first.replace(f"saved 2 conversations to {file}\n", "")
        status, rest, err = run(*chat, "--resume", file, stdin=after.encode())
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(first + rest, whole)
        # With pages of another size all is computed again, to the same tokens.
        status, rest, err = run(*chat, "--resume", file, "--page-tokens", 8, stdin=after.encode())
        self.assertEqual(status, 0, err)
        self.assertIn("page size", err)
        self.assertEqual(first + rest, whole)

    def test_chat_refuses_what_it_cannot_resume(self):
        file = os.path.join(self.folder, "tree.snap")
        run("generate", "--model", SHIPPED, "--prompt", "ab", "--max-tokens", 2, "--save", file)
        resume = ["chat", "--model", SHIPPED, "--resume"]
        self.assert_error(*resume, file, part="holds no conversation")
        self.assert_error(*resume, file + "x", part=file + "x")
        self.assert_error(*resume, file, "--messages", file, status=2, part="--messages")
        run("chat", "--model", SHIPPED, "--max-tokens", 4, stdin=f"hi\n/save {file}\n".encode())
        other = os.path.join(DATA, "models", "qwen2")
        self.assert_error("chat", "--model", other, "--resume", file, part="another model")


class ChatCompaction(CliTest):
    CHAT = ["chat", "--model", SHIPPED, "--max-tokens", 20]
    NOTE = re.compile(r"note: compacted: (\d+) messages dropped; tokens: (\d+) kept, (\d+) moved, (\d+) computed, "
                      r"(\d+) dropped; (exact|estimated divergence [\d.e-]+ nats a token)")
    TURNS = [f"{'SP'[i % 2]} 24: {i % 9 + 1} 5 6 10" for i in range(16)]
    STATE = re.compile(r"\* 1: (\d+) messages, (\d+) tokens\n")

    def talk(self, *flags, chat=None, turns=None):
        """Answers, then messages and tokens after each, and the notes as tuples of texts."""
        lines = "".join(f"{turn}\n/branches\n" for turn in turns or self.TURNS)
        status, out, err = run(*(chat or self.CHAT), *flags, stdin=lines.encode())
        self.assertEqual(status, 0, err)
        parts = self.STATE.split(out)
        answers = parts[0::3][:-1]
        sizes = [(int(messages), int(tokens)) for messages, tokens in zip(parts[1::3], parts[2::3])]
        notes = self.NOTE.findall(err)
        self.assertEqual(len(notes), err.count("note: "), err)
        return answers, sizes, notes

    def test_the_oldest_exchanges_go_and_the_rest_is_moved(self):
        turns = [f"{'SP'[i % 2]} 24: {i % 9 + 1} 5 6 10" for i in range(26)]
        answers, sizes, notes = self.talk("--context", 500, turns=turns)
        self.assertEqual(len(answers), len(turns))
        self.assertGreaterEqual(len(notes), 2)
        self.assertGreater(max(int(note[2]) for note in notes), 20)
        messages = 0
        for size, before in zip(sizes, [(0, 0), *sizes]):
            self.assertLessEqual(size[1], 500)
            messages += 2
            if size[0] != messages:  # a compaction: down to half
                dropped, kept, moved, computed, gone, how = notes.pop(0)
                messages -= int(dropped)
                self.assertEqual(size[0], messages)
                self.assertLessEqual(int(kept) + int(moved) + int(computed), 250)
                self.assertGreater(int(gone), 100)
                self.assertGreater(before[1], 440)
                self.assertEqual(how == "exact", moved == "0")  # all is computed where moving errs too much
        self.assertEqual(notes, [])

    def test_exact_is_the_conversation_without_what_was_dropped(self):
        answers, sizes, notes = self.talk("--context", 300, "--compact", "exact")
        self.assertEqual({(note[2], note[5]) for note in notes}, {("0", "exact")})
        at = next(i for i, size in enumerate(sizes) if size[0] != 2 * i + 2)
        first = int(notes[0][0]) // 2
        rest = [{"role": role, "content": text} for turn, answer in zip(self.TURNS[first:at], answers[first:at])
                for role, text in (("user", turn), ("assistant", answer.removesuffix("\n")))]
        file = self.write("rest.json", json.dumps(rest))
        again, _, none = self.talk("--messages", file, turns=self.TURNS[at:at + 2])
        self.assertEqual((again, none), (answers[at:at + 2], []))

    def test_a_pool_may_be_small(self):
        answers, sizes, notes = self.talk("--kv-tokens", 400)
        self.assertGreaterEqual(len(notes), 2)
        self.assertTrue(all(answer.strip() for answer in answers))
        self.assertLessEqual(max(tokens for _, tokens in sizes), 240)

    def test_off_keeps_all(self):
        _, sizes, notes = self.talk("--context", 300, "--compact", "off")
        self.assertEqual((sizes[-1][0], notes), (2 * len(self.TURNS), []))
        lines = "\n".join(self.TURNS).encode()
        status, _, err = run(*self.CHAT, "--compact", "off", "--kv-tokens", 96, stdin=lines)
        self.assertEqual(status, 0)
        self.assertIn("note: the answer was cut short: KV pages ran out", err)

    def test_system_messages_stay(self):
        model = os.path.join(self.folder, "model")
        shutil.copytree(SHIPPED, model)
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write("{% for m in messages %}{{ m.role[0] }} {{ m.content }}{{ '\n' }}{% endfor %}")
        system = "Always say which numbers are left, and never more than three steps."
        file = self.write("system.json", json.dumps([{"role": "system", "content": system}]))
        chat = ["chat", "--model", model, "--max-tokens", 20, "--messages", file, "--context", 300]
        _, sizes, notes = self.talk(chat=chat)
        self.assertGreaterEqual(len(notes), 2)
        self.assertEqual({size[0] % 2 for size in sizes}, {1})
        for note in notes:
            self.assertGreaterEqual(int(note[1]), len(system))  # (of bytes)

    def test_other_conversations_stay_and_a_saved_one_goes_on(self):
        file = os.path.join(self.folder, "chat.snap")
        chat = [*self.CHAT, "--context", 300, "--temperature", 0.7]
        before = "\n".join(self.TURNS[:7]) + "\n/fork\n" + "\n".join(self.TURNS[7:9]) + "\n/branches\n"
        after = "\n".join(self.TURNS[9:12]) + "\n/branch 1\n/branches\nonce more\n"
        _, whole, err = run(*chat, stdin=(before + after).encode())
        self.assertIn("compacted", err)
        self.assertIn("  1: 14 messages", whole)
        _, first, _ = run(*chat, stdin=f"{before}/save {file}\n".encode())
        status, rest, _ = run(*chat, "--resume", file, stdin=after.encode())
        self.assertEqual(status, 0)
        self.assertEqual(first.replace(f"saved 2 conversations to {file}\n", "") + rest, whole)

    def test_a_first_prompt_may_be_too_long(self):
        talk = [{"role": role, "content": turn} for turn in self.TURNS for role in ("user", "assistant")]
        file = self.write("talk.json", json.dumps(talk))
        _, _, notes = self.talk("--messages", file, "--context", 200, turns=["S 24: 4 5 6 10"])
        self.assertEqual([(note[1], note[2]) for note in notes], [("0", "0")])


class Watch(CliTest):
    SOLVE = ["solve", "3", "5", "9", "13", "--watch"]
    RESTORED = "\033[?7h\033[?25h"

    def on_terminal(self, *args, environment=(), stop=None):
        """Exit status, stdout, and what came to a terminal that is stderr; `stop`: a signal for it after it began."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:  # a chroot without /dev/pts
            self.skipTest(f"no pseudo-terminal here: {error}")
        self.addCleanup(os.close, ours)
        process = subprocess.Popen([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=theirs, env={**os.environ, "TERM": "xterm", **dict(environment)})
        os.close(theirs)
        text = b""
        while True:
            try:
                text += os.read(ours, 65536)
            except OSError:  # the program has ended
                break
            if stop is not None and b"\033[J" in text:
                process.send_signal(stop)
                stop = None
        out = process.communicate(timeout=60)[0].decode()
        return process.returncode, out, text.decode()

    def test_events_are_lines_on_stderr_without_a_terminal(self):
        plain = run(*self.SOLVE[:-1])[1].splitlines()
        status, out, err = run(*self.SOLVE)
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[:2], [plain[0], plain[-6]])  # the tree is not there twice
        lines = err.splitlines()
        self.assertRegex(lines[0], r"^ +\d+\.\d{3} s  proposed  1 of 0: ")
        self.assertRegex(lines[-2], r" s  solved    \d+: ")
        self.assertRegex(lines[-1], r" s  end   .* tokens computed")
        self.assertIsNotNone(self.json_of(*self.SOLVE)["solution"])

    def test_a_terminal_gets_a_picture_and_is_left_as_it_was(self):
        status, out, text = self.on_terminal(*self.SOLVE)
        self.assertEqual(status, 0)
        self.assertIn("= 24", out)
        self.assertIn("★", text)
        self.assertIn("\033[1m", text)
        self.assertTrue(text.endswith(self.RESTORED), text[-80:])
        _, _, text = self.on_terminal(*self.SOLVE, environment={"NO_COLOR": "1"}.items())
        self.assertIn("★", text)
        self.assertNotIn("\033[1m", text)
        for flags, environment in ((["--plain"], {}), ([], {"TERM": "dumb"})):
            _, _, text = self.on_terminal(*self.SOLVE, *flags, environment=environment.items())
            self.assertIn(" s  solved ", text)
            self.assertNotIn("\033[", text.split("proposed", 1)[1])

    def test_signals_find_the_terminal_as_it_was(self):
        long = ["solve", 1, 2, 5, 9, 13, "--target", 997, "--watch", "--width", 5000]
        for stop, expected in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
            status, _, text = self.on_terminal(*long, stop=stop)
            self.assertEqual(status, expected)
            self.assertTrue(text.endswith(self.RESTORED), text[-80:])


class TraceReplay(CliTest):
    def test_is_the_same_search_and_says_where_it_is_not(self):
        trace = os.path.join(self.folder, "search.jsonl")
        self.json_of("solve", "3", "5", "9", "13", "--strategy", "best-of-n", "--seed", 3, "--trace", trace)
        status, out, err = run("trace", "replay", trace, "--threads", 1, "--page-tokens", 8)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("the same search", out)
        self.assertEqual(self.json_of("trace", "replay", trace), {"same": True})
        with open(trace) as file:
            text = file.read()
        other = self.write("other.jsonl", text.replace('"seed":3', '"seed":4'))
        self.assertIn(other, self.assert_error("trace", "replay", other, part="line 2 differs"))
        foreign = self.write("foreign.jsonl", TraceView.HEADER)
        self.assertIn(foreign, self.assert_error("trace", "replay", foreign, part="solve.target"))


class TraceView(CliTest):
    HEADER = ('{"trace":1,"strategy":"mcts-uct","params":{},"seed":0,"prompt":"p","model":"m",'
              '"numerics":"n"}\n')
    THOUGHT = ('{"event":"proposed","node":1,"parent":0,"depth":1,"text":"t","tokens":[1],'
               '"logprob":-1}\n')

    def test_writes_a_page_beside_the_trace_or_where_told(self):
        trace = self.write("search.jsonl", self.HEADER + self.THOUGHT)
        status, out, err = run("trace", "view", trace)
        self.assertEqual((status, err), (0, ""))
        beside = os.path.join(self.folder, "search.html")
        self.assertEqual(out, f"{beside}: 1 thought, a search that did not end\n")
        there = os.path.join(self.folder, "page")
        self.assertEqual(run("trace", "view", trace, "--out", there)[0], 0)
        with open(beside) as one, open(there) as other:
            page = one.read()
            self.assertEqual(page, other.read())
        self.assertIn(self.THOUGHT, page)

    def test_what_is_no_trace_is_refused(self):
        view = ["trace", "view"]
        none = os.path.join(self.folder, "none", "x.jsonl")
        self.assert_error(*view, none, part=none)
        whole = self.HEADER + self.THOUGHT
        for name, text, part in (("empty", "", "empty"), ("binary", b"\xff\0", "line 1"),
                                 ("cut", whole[:-9], "line 2"),
                                 ("version", whole.replace('"trace":1', '"trace":2'), "version 2"),
                                 ("unknown", self.HEADER + '{"event":"x","node":1}\n', "line 2"),
                                 ("order", whole.replace('"node":1', '"node":2'), "line 2")):
            path = self.write(name, text)
            err = self.assert_error(*view, path, part=part)
            self.assertIn(path, err)
            self.assertNotIn(name + ".html", os.listdir(self.folder))

    def test_a_page_that_cannot_be_written_is_an_error(self):
        trace = self.write("search.html", self.HEADER)
        self.assert_error("trace", "view", trace, part="is the trace")
        link = os.path.join(self.folder, "link")
        os.symlink(trace, link)
        self.assert_error("trace", "view", trace, "--out", link, part="is the trace")
        there = os.path.join(self.folder, "none", "page.html")
        self.assert_error("trace", "view", trace, "--out", there, part=there)
        with open(trace) as file:
            self.assertEqual(file.read(), self.HEADER)


class Tokenize(CliTest):
    TEXTS = ["", "Hello, world", "trailing newline\n", "two\r\nlines\r\n", "  spaces  ", "naïve café – 日本語 🎉",
             "\t\0\x01", "e\u0301", "<|bos|>"]

    def test_round_trips_byte_for_byte(self):
        for model in (TINY, SHIPPED):
            for text in self.TEXTS:
                out = self.json_of("tokenize", "--model", model, "--no-special", stdin=text.encode())
                self.assertEqual(out["text"], text)
                ids = ",".join(map(str, out["ids"]))
                if ids:
                    back = self.json_of("tokenize", "--model", model, "--decode", stdin=ids.encode())
                    self.assertEqual(back, out)

    def test_special_tokens_are_added_and_parsed(self):
        plain = self.json_of("tokenize", "--model", TINY, "--no-special", stdin=b"ab")["ids"]
        self.assertEqual(self.json_of("tokenize", "--model", TINY, stdin=b"ab")["ids"], [1, *plain])
        self.assertEqual(self.json_of("tokenize", "--model", TINY, "--no-special", stdin=b"<|eos|>ab")["ids"],
                         [2, *plain])

    def test_bytes_that_are_no_utf8_do_not_break_it(self):
        out = self.json_of("tokenize", "--model", TINY, "--no-special", stdin=b"a\xff\xc3(")
        self.assertEqual(out["text"], "a\ufffd\ufffd(")

    def test_needs_no_weights(self):
        path = self.copy_of("llama2", without=["*.safetensors"])
        self.assertEqual(self.json_of("tokenize", "--model", path, stdin=b"ab"),
                         self.json_of("tokenize", "--model", TINY, stdin=b"ab"))

    def test_refuses_what_are_no_ids(self):
        for text in (b"1,x", b"-4", b"99999999999", b"1.5"):
            self.assert_error("tokenize", "--model", TINY, "--decode", stdin=text, part="token id")


class Messages(CliTest):
    MESSAGES = [{"role": "user", "content": "3 5 9 13"}]

    def test_are_rendered_without_a_second_bos(self):
        path = self.write("messages.json", json.dumps(self.MESSAGES))
        render = self.json_of("chat", "--model", SHIPPED, "--messages", path, "--render")
        out = self.json_of("generate", "--model", SHIPPED, "--messages", path, "--max-tokens", 1)
        self.assertEqual(out["prompt_ids"], render["ids"])
        bos = self.json_of("info", "--model", SHIPPED)["model"]["bos"]
        self.assertLessEqual(sum(id in bos for id in render["ids"]), 1)
        self.assertEqual(render["text"],
                         self.json_of("tokenize", "--model", SHIPPED, "--decode",
                                      stdin=" ".join(map(str, render["ids"])).encode())["text"])
        status, out, _ = run("chat", "--model", SHIPPED, "--messages", path, "--render")
        self.assertEqual((status, out), (0, render["text"]))

    def test_that_are_wrong_are_refused(self):
        for text in ("", "{", "{}", "[1]", '[{"role": 3}]', "null"):
            path = self.write("messages.json", text)
            self.assert_error("generate", "--model", SHIPPED, "--messages", path, "--max-tokens", 1)
            self.assert_error("chat", "--model", SHIPPED, "--messages", path, "--render")
        self.assert_error("generate", "--model", SHIPPED, "--messages",
                          os.path.join(self.folder, "none.json"), part="none.json")
        path = self.write("messages.json", json.dumps(self.MESSAGES))
        self.assert_error("generate", "--model", TINY, "--messages", path, part="chat template")


class Score(CliTest):
    def test_of_texts(self):
        out = self.json_of("score", "--model", TINY, "--prompt", "Once", "--continuation", " upon",
                           "--continuation", " a", "--continuation", " upon")
        first, second, third = out["scores"]
        self.assertEqual(first, third)
        self.assertEqual(len(first["tokens"]), 5)
        self.assertEqual(len(second["tokens"]), 2)
        self.assertEqual(first["tokens"][0], second["tokens"][0])
        for score in out["scores"]:
            self.assertAlmostEqual(score["logprob"], sum(score["tokens"]), places=9)
        # " upon" and " a" share " ": its rows are computed once.
        self.assertEqual(out["stats"]["tokens_computed"], 5 + 4)

    def test_refuses_what_cannot_be_scored(self):
        args = ["score", "--model", TINY, "--prompt", "x"]
        self.assert_error(*args, part="--continuation")
        self.assert_error(*args, "--continuation", "", part="no tokens")
        self.assert_error(*args, "--continuation-ids", "1,99999", part="99999")
        self.assert_error(*args, "--continuation-ids", "a", part="--continuation-ids")


class Chunks(CliTest):
    ONE, TWO = "Once upon a time there was a fox. " * 3, "It was a dark night."

    def chunks(self, *args):
        return self.json_of("chunks", "--model", TINY, *args)

    def test_shows_what_the_registry_holds(self):
        files = [self.write("one.txt", self.ONE), self.write("two.txt", self.TWO), self.write("same.txt", self.ONE + "\r\n")]
        out = self.chunks(*files, "--text", "abc")
        chunks = {chunk["name"]: chunk for chunk in out["chunks"]}
        self.assertEqual([chunk["name"] for chunk in out["chunks"]], ["text 1", "one.txt", "two.txt"])  # the last used first
        one = chunks["one.txt"]
        ids = self.json_of("tokenize", "--model", TINY, "--no-special", stdin=self.ONE.strip().encode())["ids"]
        self.assertEqual((one["tokens"], one["tokens_held"], one["state"]), (len(ids), len(ids), "warm"))
        self.assertEqual((one["uses"], one["hits"], one["hit_rate"]), (2, 1, 0.5))
        self.assertEqual(chunks["two.txt"]["uses"], 1)
        self.assertEqual(one["pages"], -(-(one["tokens"] + one["left_tokens"]) // 16))
        self.assertAlmostEqual(one["page_utilisation"], (one["tokens"] + one["left_tokens"]) / one["pages"] / 16)
        self.assertGreater(one["prefill_tokens_per_second"], 0)
        self.assertTrue(self.ONE.startswith(one["text"].strip()[:4]))
        engine = out["engine"]
        self.assertEqual((engine["chunk_entries"], engine["chunk_lookups"], engine["chunk_hits"]), (3, 4, 1))
        self.assertEqual(one["kv_bytes"], one["tokens"] * engine["page_bytes"] // engine["page_tokens"])
        self.assertIsNone(out["composition"])

    def test_composes_them_with_a_query(self):
        out = self.chunks("--text", self.ONE, "--text", self.TWO, "--query", "Who?")
        composition = out["composition"]
        self.assertEqual(composition["exactness"], "composed")
        self.assertEqual(composition["moved"], out["stats"]["tokens_moved"])
        total = sum(composition[name] for name in ("kept", "moved", "repaired", "computed"))
        query = len(self.json_of("tokenize", "--model", TINY, "--no-special", stdin=b"Who?")["ids"])
        self.assertEqual(total, sum(chunk["tokens"] for chunk in out["chunks"]) + query)
        self.assertEqual([(chunk["reads"], chunk["read_hits"]) for chunk in out["chunks"]], [(1, 1)] * 2)
        # The first one behind what it was computed behind is exact.
        prefixed = self.chunks("--prefix", "Hello", "--text", self.ONE, "--query", "Who?")
        self.assertEqual(prefixed["composition"]["moved"], 0)
        self.assertEqual(prefixed["composition"]["exactness"], "exact")

    def test_people_get_a_table(self):
        status, out, err = run("chunks", "--model", TINY, "--text", self.ONE, self.write("a\x1bb.txt", self.TWO), "--query", "Who?")
        self.assertEqual(status, 0, err)
        lines = out.splitlines()
        self.assertEqual(lines[0].split(), ["chunk", "state", "tokens", "KV", "KiB", "pages", "filled", "uses", "hits", "tokens/s"])
        self.assertRegex(lines[1], r"^text 1 +warm +[0-9]+ ")
        self.assertNotIn("\x1b", out)
        self.assertIn("2 chunks of ", out)
        self.assertRegex(lines[-1], "^composed in .* ms [(]composed[)]: 0 tokens kept, [0-9]+ moved")

    def test_errors_name_the_chunk(self):
        args = ["chunks", "--model", TINY]
        self.assert_error(*args, part="expected files, or --text")
        self.assert_error(*args, os.path.join(self.folder, "none.txt"), part="none.txt: cannot be read")
        self.assert_error(*args, self.write("bad.txt", b"\xff\xfe"), part="bad.txt: ")
        self.assert_error(*args, self.write("empty.txt", " \n"), part="empty.txt: ")
        self.assert_error(*args, self.write("large.txt", self.ONE * 9), "--kv-tokens", 64, part="large.txt: ")
        message = self.assert_error(*args, "--text", self.ONE, "--kv-tokens", 128, "--query", "Who?", part="--query: KV pages ran out")
        self.assertIn("make the pool larger (kv_tokens >= ", message)


class Usage(CliTest):
    def test_the_shipped_model_is_the_default(self):
        if os.path.samefile(os.path.dirname(MODELS), os.path.join(os.path.dirname(PROGRAM), "..", "..")):
            out = self.json_of("info")  # the build tree lies in the repository
            self.assertEqual(out["model"], self.json_of("info", "--model", SHIPPED)["model"])
        else:
            self.assert_error("info", part="dendrite-24")

    def test_info_lists_families(self):
        families = self.json_of("info", "--families")["families"]
        types = [family["model_type"] for family in families]
        self.assertEqual(len(types), len(set(types)))
        self.assertLessEqual({"llama", "qwen3_5_moe", "gemma3_text", "gpt_oss"}, set(types))
        lines = run("info", "--families")[1].splitlines()
        self.assertEqual([line.split()[0] for line in lines], types)
        self.assertEqual(lines[0].split(), ["llama", "LlamaForCausalLM"])

    def test_wrong_usage_exits_with_2(self):
        for args in ([], ["nonsense"], ["generate", "--no-such-flag"], ["generate", "--max-tokens", "many"],
                     ["generate", "--max-tokens", "-1"], ["generate", "--dtype", "f8"],
                     ["generate", "--device", "tpu"], ["generate", "--device", "cuda:x"], ["generate", "--page-tokens", "12"],
                     ["generate", "--n", "0"], ["generate", "--prompt", "a", "--prompt-ids", "1"],
                     ["solve"], ["solve", "1", "x"]):
            self.assert_error(*args, status=2)

    def test_help_and_version_exit_with_0(self):
        for args in (["--help"], ["generate", "--help"], ["chunks", "--help"], ["--version"]):
            status, out, err = run(*args)
            self.assertEqual((status, err), (0, ""), args)
            self.assertTrue(out)

    def test_parameters_out_of_range_are_named(self):
        args = ["generate", "--model", TINY, "--prompt", "x"]
        self.assert_error(*args, "--temperature", -1, part="temperature")
        self.assert_error(*args, "--top-p", 0, part="top_p")
        self.assert_error(*args, "--top-k", -3, part="top_k")
        self.assert_error(*args, "--min-p", 2, part="min_p")
        self.assert_error(*args, "--repetition-penalty", 0, part="repetition_penalty")
        self.assert_error(*args, "--logit-bias", "5", part="--logit-bias")
        self.assert_error(*args, "--logit-bias", "5000:1", part="logit_bias")
        self.assert_error(*args, "--kernels", "sse9", part="sse9")
        self.assert_error("generate", "--model", TINY, "--prompt-ids", "1,320", part="320")
        self.assert_error("generate", "--model", TINY, "--prompt-ids", "", part="--prompt-ids")
        self.assert_error("generate", "--model", TINY, "--prompt", "x" * 100, "--kv-tokens", 32, part="kv-tokens")

    def test_every_command_prints_one_object(self):
        for args in (["info", "--model", SHIPPED], ["info", "--model", TINY], ["tokenize", "--model", TINY]):
            self.json_of(*args)

    def test_info_tells_of_model_and_device(self):
        info = self.json_of("info", "--model", TINY)
        self.assertEqual(info["model"]["vocab"], 320)
        self.assertEqual(info["model"]["layers"], 2)
        self.assertIn("kernels", info["device"])
        self.assertEqual([one["format"] for one in info["model"]["stored"]], ["bf16"])
        self.assertEqual(info["model"]["stored"][0]["parameters"], info["model"]["parameters"])
        self.assertEqual(info["model"]["bits_per_weight"], 16)
        path = self.copy_of("llama2", without=["*.safetensors"])
        self.assertEqual(self.json_of("info", "--model", path)["model"]["vocab"], 320)
        self.assertEqual(self.json_of("info", "--model", path)["compatibility"]["products"], 0)

    def test_info_tells_how_weights_bear_rounding(self):
        for model in (TINY, SHIPPED):
            told = self.json_of("info", "--model", model, "--quantization", "int8")["compatibility"]
            self.assertEqual((told["verdict"], told["unrounded"]), ("compatible", 0), model)
            self.assertGreater(told["score"], 0.8)
            self.assertLess(told["largest"], 10)
        self.assertIn("compatible (score ", run("info", "--model", SHIPPED)[1])

    def test_memory_bounds_weights_and_pages(self):
        self.assert_error("generate", "--model", SHIPPED, "--memory", "8MiB", "--prompt", "1", part="memory_bytes")
        self.json_of("generate", "--model", SHIPPED, "--memory", "64MiB", "--prompt", "1", "--max-tokens", 1)

    def test_weights_are_rounded_when_they_are_loaded(self):
        key = self.json_of("info", "--model", SHIPPED)["device"]["numerics_key"]
        for kind in ("fp8", "int8", "int4"):
            info = self.json_of("info", "--model", SHIPPED, "--quantization", kind)
            self.assertEqual(info["model"]["quantization"], kind)
            self.assertEqual(info["device"]["numerics_key"], f"{key}/{kind}")
            out = self.json_of("generate", "--model", SHIPPED, "--quantization", kind, "--prompt", "S 24: 2 5 8 10",
                               "--max-tokens", 4, "--temperature", 0)
            self.assertEqual(len(out["branches"][0]["ids"]), 4)
        self.assert_error("generate", "--model", SHIPPED, "--quantization", "int3", "--prompt", "1", part="int8", status=2)
        info = self.json_of("info", "--model", SHIPPED, "--output-quantization", "int8", "--quantization", "int4")
        self.assertEqual(info["model"]["output_quantization"], "int8")
        self.assertEqual(info["device"]["numerics_key"], f"{key}/int4/output_int8")

    def test_k_and_v_in_fp8_take_half(self):
        sizes = {}
        for kind in ("bf16", "fp8"):
            model = self.json_of("info", "--model", SHIPPED, "--kv-dtype", kind)["model"]
            self.assertEqual(model["kv_dtype"], kind)
            sizes[kind] = model["kv_token_bytes"]
        vectors = model["layers"] * 2 * model["kv_heads"]
        self.assertEqual(sizes["fp8"], sizes["bf16"] // 2 + vectors)
        out = self.json_of("generate", "--model", SHIPPED, "--kv-dtype", "fp8", "--prompt", "S 24: 2 5 8 10",
                           "--max-tokens", 4, "--temperature", 0)
        self.assertEqual(len(out["branches"][0]["ids"]), 4)
        self.assert_error("generate", "--model", SHIPPED, "--kv-dtype", "int8", "--prompt", "1", part="fp8", status=2)
        self.assert_error("generate", "--model", SHIPPED, "--kv-dtype", "fp8", "--drafter", SHIPPED + "-dflash", "--prompt",
                          "1", part="expected auto or bf16 with a drafter")

    def test_devices_share_a_model(self):
        flags = ["generate", "--model", SHIPPED, "--prompt", "S 24: 2 5 8 10", "--max-tokens", 4, "--temperature", 0]
        key = self.json_of("info", "--model", SHIPPED)["device"]["numerics_key"]
        info = self.json_of("info", "--model", SHIPPED, "--devices", "0,0")
        self.assertEqual(info["device"]["numerics_key"], key + "/2_ranks")
        out = self.json_of(*flags, "--devices", "0,0")
        self.assertEqual(len(out["branches"][0]["ids"]), 4)
        self.assert_error(*flags, "--devices", "0,1", part="device cpu, which is 0 alone")
        self.assert_error(*flags, "--devices", "0,x", part="--devices", status=2)
        self.assert_error(*flags, "--devices", "0,0,0", part="heads (4), which 3 devices do not share")


class BrokenModels(CliTest):
    def refuse(self, path, part="", *flags):
        # At most 2 GB, whatever a file claims.
        err = self.assert_error("generate", "--model", path, "--prompt-ids", "1", "--max-tokens", 1,
                                "--kv-tokens", 64, *flags, part=part)
        return err

    def test_folders(self):
        self.refuse(os.path.join(self.folder, "nowhere"), "nowhere")
        self.refuse(self.folder, self.folder)
        self.refuse(self.write("file.txt", "x"), "file.txt")
        self.refuse("no-such/model-id", "no-such/model-id")
        self.refuse(self.copy_of("llama2", without=["config.json"]), "config.json")
        self.refuse(self.copy_of("llama2", without=["*.safetensors"]), "safetensors")
        self.refuse(self.copy_of("llama_sharded", without=["model-00002*"]), "model-00002")

    def test_configs(self):
        for config, part in (
                ({"model_type": "mamba"}, "mamba"),
                ({"model_type": None, "architectures": ["WhatForCausalLM"]}, ""),
                ({"hidden_act": "gelu"}, "gelu"),
                ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
                ({"rope_scaling": {"type": "su", "factor": 2.0}}, "su"),
                ({"num_hidden_layers": 3}, "layers.2"),
                ({"num_hidden_layers": -1}, "num_hidden_layers"),
                ({"num_hidden_layers": 10**12}, ""),
                ({"hidden_size": 65}, ""),
                ({"hidden_size": "64"}, "hidden_size"),
                ({"hidden_size": None}, "4096"),  # transformers' default
                ({"num_key_value_heads": 5}, ""),
                ({"vocab_size": 321}, "321"),
                ({"vocab_size": 10**15}, ""),
                ({"rms_norm_eps": "x"}, "rms_norm_eps"),
                ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "quantization_config")):
            with self.subTest(config):
                self.refuse(self.copy_of("llama2", config=config), part)
        for text in ("", "{", "[]", "null", "\xff\xfe", '{"model_type":' * 2000):
            path = self.copy_of("llama2")
            with open(os.path.join(path, "config.json"), "w") as file:
                file.write(text)
            self.refuse(path, "config.json")

    def test_weights(self):
        def changed(edit):
            path = self.copy_of("llama2")
            file = os.path.join(path, "model.safetensors")
            with open(file, "rb") as source:
                data = bytearray(source.read())
            data = edit(data)
            with open(file, "wb") as target:
                target.write(data)
            return path

        def nan(data):
            data[-1:] = b"\x7f"
            data[-2:-1] = b"\xc0"
            return data

        self.refuse(changed(lambda data: data[:-1]), "model.safetensors")
        self.refuse(changed(lambda data: data + b"\0"), "model.safetensors")
        self.refuse(changed(lambda data: data[:7]), "model.safetensors")
        self.refuse(changed(lambda data: b""), "model.safetensors")
        self.refuse(changed(lambda data: b"\xff" * 8 + data[8:]), "model.safetensors")
        self.refuse(changed(lambda data: data.replace(b'"BF16"', b'"BF99"', 1)), "BF99")
        self.refuse(changed(lambda data: data.replace(b"self_attn.k_proj", b"self_attn.x_proj", 1)), "k_proj")
        self.assertIn("NaN", self.refuse(changed(nan), "model.safetensors"))

    def test_tokenizers(self):
        for text in ("", "{}", "[1", "\0"):
            path = self.copy_of("llama2")
            with open(os.path.join(path, "tokenizer.json"), "w") as file:
                file.write(text)
            self.assert_error("tokenize", "--model", path, stdin=b"x", part="tokenizer.json")

    def test_a_device_that_is_not_there(self):
        status, out, err = run("generate", "--model", TINY, "--device", "cuda", "--prompt", "x", "--max-tokens", 1)
        if status == 0:
            self.skipTest("there is a CUDA device")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("CUDA", err)
        self.assert_error("generate", "--model", TINY, "--device", "cuda:1", "--prompt", "x", part="CUDA")


class Solve(CliTest):
    def test_finds_and_checks_a_solution(self):
        out = self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13)
        self.assertEqual((out["numbers"], out["target"]), ([3, 5, 9, 13], 24))
        self.assertRegex(out["solution"], r"^[0-9+*/()-]+$")
        self.assertEqual(eval(out["solution"]), 24)
        self.assertEqual(sorted(map(int, re.findall(r"\d+", out["solution"]))), [3, 5, 9, 13])
        self.assertEqual(len(out["steps"]), 3)
        self.assertEqual(out["steps"][-1]["branch"], out["branch"])
        for key in ("tokens_computed", "tokens_independent", "kv_bytes_unique", "kv_bytes_naive", "fork_ns", "seconds"):
            self.assertGreater(out["stats"][key], 0)
        self.assertLess(out["stats"]["tokens_computed"], out["stats"]["tokens_independent"])
        self.assertIn("greedy", out)

    def test_says_why_there_is_none(self):
        out = self.json_of("solve", "--model", SHIPPED, 1, 1, 1, 1)
        self.assertIsNone(out["solution"])
        self.assertEqual(out["reason"], "none exists")
        out = self.json_of("solve", "--model", SHIPPED, 3, 3, 8, 8)
        self.assertIsNone(out["solution"])
        self.assertIn("whole-number", out["reason"])
        out = self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13, "--budget-tokens", 30)
        self.assertIsNone(out["solution"])
        self.assertEqual(out["reason"], "the budget ran out")
        self.assertLessEqual(out["stats"]["tokens_computed"], 30)

    def test_other_strategies_and_targets(self):
        for strategy in ("greedy", "beam", "best-of-n", "mcts", "depth-first", "best-first"):
            out = self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13, "--strategy", strategy, "--width", 4)
            self.assertEqual(eval(out["solution"]), 24, strategy)
            self.assertEqual(len(out["steps"]), 3)
            self.assertEqual(out["steps"][-1]["branch"], out["branch"])
            self.assertEqual(out["reason"], "solved")
        out = self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13, "--strategy", "mcts", "--budget-tokens", 60)
        self.assertEqual((out["solution"], out["reason"]), (None, "the budget ran out"))
        out = self.json_of("solve", "--model", SHIPPED, 8, 10, 13, "--target", 31)
        self.assertEqual(out["target"], 31)
        if out["solution"] is not None:
            self.assertEqual(eval(out["solution"]), 31)

    def test_steps_can_be_drawn_with_drafts_and_without(self):
        outs, traces = [], []
        for method in ("off", "suffix"):
            path = os.path.join(self.folder, f"drawn-{method}.jsonl")
            outs.append(self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13, "--samples", 6, "--speculate", method,
                                     "--trace", path))
            with open(path, "rb") as file:
                traces.append(file.read())
        self.assertEqual(outs[0]["solution"], outs[1]["solution"])
        self.assertEqual(traces[0], traces[1])
        self.assertEqual(json.loads(traces[0].splitlines()[0])["params"]["solve.samples"], "6")
        status, out, err = run("trace", "replay", "--model", SHIPPED, path)
        self.assertEqual(status, 0, err)
        self.assert_error("solve", "--model", SHIPPED, 3, 5, 9, 13, "--samples", 6, "--speculate", "magic", part="magic")

    def test_a_trace_is_the_same_bytes_each_time(self):
        traces = []
        for threads in (1, 3):
            path = os.path.join(self.folder, f"{threads}.jsonl")
            self.json_of("solve", "--model", SHIPPED, 3, 5, 9, 13, "--strategy", "mcts", "--trace", path,
                         "--threads", threads)
            with open(path, "rb") as file:
                traces.append(file.read())
        self.assertEqual(traces[0], traces[1])
        lines = [json.loads(line) for line in traces[0].splitlines()]
        self.assertEqual((lines[0]["trace"], lines[0]["strategy"]), (1, "mcts-puct"))
        self.assertEqual({line["event"] for line in lines[1:-1]}, {"proposed", "judged", "visited", "kept", "solved"})
        self.assertTrue(lines[-1]["result"]["solved"])
        self.assert_error("solve", "--model", SHIPPED, 3, 5, 9, 13, "--trace", "/no/such/folder/t", part="--trace")

    def test_refuses_other_puzzles(self):
        self.assert_error("solve", 24, part="numbers")
        self.assert_error("solve", 0, 5, 5, 5, part="number 0")
        self.assert_error("solve", 1, 2, 3, 1000, part="1000")
        self.assert_error("solve", 1, 2, 3, 4, "--target", 0, part="target")

    def test_prints_for_people_too(self):
        status, out, _ = run("solve", "--model", SHIPPED, 3, 5, 9, 13)
        self.assertEqual(status, 0)
        self.assertIn("= 24", out)
        self.assertNotIn("\033", out)  # no colours in a pipe


class Observe(CliTest):
    """--events, --metrics and the log flags of the environment."""

    ARGS = ["generate", "--model", TINY, "--prompt", "ab", "--n", 3, "--max-tokens", 4, "--ignore-eos",
            "--temperature", 1]

    def test_events_are_json_lines_of_the_run(self):
        path = os.path.join(self.folder, "events.jsonl")
        out = self.json_of(*self.ARGS, "--events", path)
        with open(path) as file:
            events = [json.loads(line) for line in file]
        self.assertEqual([e["sequence"] for e in events], list(range(1, len(events) + 1)))
        kinds = [e["event"] for e in events]
        self.assertEqual(kinds[0], "prefill")
        self.assertEqual(kinds.count("fork"), 3)
        self.assertEqual(kinds.count("prune"), 4)  # the root and its forks
        steps = [e for e in events if e["event"] == "step"]
        self.assertEqual(len(steps), out["stats"]["steps"])
        self.assertEqual(sum(e["rows"] for e in steps), out["stats"]["tokens_computed"])
        self.assertTrue(all(e["naive_bytes"] > 0 and e["unique_bytes"] > 0 for e in steps))
        self.assertEqual(steps[-1]["ran"], [2, 3, 4])
        calls = [e for e in events if e["event"] == "call"]
        self.assertEqual([e["call"] for e in calls], ["prefill", "decode"])
        self.assertEqual(sum(e["rows"] for e in calls), out["stats"]["tokens_computed"])
        decode = calls[1]
        self.assertEqual((decode["branches"], decode["tokens"], decode["finish"]), (3, 12, "length"))
        self.assertGreaterEqual(decode["first_token_ms"], decode["queued_ms"])
        self.assertLessEqual(decode["first_token_ms"], decode["ms"])
        self.assertGreater(decode["tokens_per_second"], 0)
        self.assertEqual(sum(e["pages"] for e in events if e["event"] == "allocate"),
                         sum(e["pages"] for e in steps))

    def test_metrics_are_prometheus_text_at_the_end(self):
        path = os.path.join(self.folder, "metrics.txt")
        out = self.json_of(*self.ARGS, "--metrics", path)
        with open(path) as file:
            lines = file.read().splitlines()
        values = dict(line.split() for line in lines if not line.startswith("#"))
        self.assertEqual(int(values["dendrite_rows_total"]), out["stats"]["tokens_computed"])
        self.assertEqual(int(values["dendrite_forks_total"]), 3)
        self.assertIn("# TYPE dendrite_rows_total counter", lines)
        self.assertEqual(int(values["dendrite_tokens_generated_total"]), 12)
        busy = float(values["dendrite_busy_seconds_total"])
        self.assertGreater(busy, 0)
        self.assertAlmostEqual(float(values["dendrite_tokens_per_second"]) * busy / 12, 1, places=1)
        self.assertGreater(int(values["dendrite_bytes_read_total"]), 0)
        self.assertGreater(float(values["dendrite_read_bandwidth"]), 0)
        self.assertEqual(int(values["dendrite_calls_total"]), 2)
        self.assertGreater(float(values["dendrite_first_token_seconds_total"]), 0)
        self.assertTrue(0 < float(values["dendrite_pool_utilisation_peak"]) <= 1)

    def test_a_dash_is_stderr_and_a_bad_path_an_error(self):
        status, out, err = run(*self.ARGS, "--json", "--events", "-", "--metrics", "-")
        self.assertEqual(status, 0)
        self.parse(out)
        lines = [line for line in err.splitlines() if line.startswith("{")]
        self.assertEqual(json.loads(lines[0])["event"], "prefill")
        self.assertIn("dendrite_steps_total", err)
        self.assert_error(*self.ARGS, "--events", os.path.join(self.folder, "no/such/file"), part="no/such")

    def test_log_flags_print_a_line_an_event(self):
        def logged(**flags):
            done = subprocess.run([PROGRAM, *map(str, self.ARGS)], capture_output=True, timeout=120,
                                  env={**os.environ, **flags})
            self.assertEqual(done.returncode, 0)
            return [line.split() for line in done.stderr.decode().splitlines()
                    if line.startswith("dendrite: ")]
        kinds = [line[3] for line in logged(DENDRITE_LOG_FORK="1")]
        self.assertEqual(kinds.count("fork"), 3)
        self.assertEqual(kinds.count("prune"), 4)
        self.assertIn("copy_on_write", kinds)
        self.assertNotIn("step", kinds)
        lines = logged(DENDRITE_LOG_SCHEDULER="1")
        kinds = [line[3] for line in lines]
        self.assertIn("step", kinds)
        self.assertNotIn("fork", kinds)
        last = [line for line in lines if line[3] == "step"][-1]
        self.assertEqual(last[last.index("ran") + 1], "[2,3,4]")
        self.assertEqual(last[last.index("rows") + 1], "3")
        self.assertEqual(logged(DENDRITE_LOG_FORK="0", DENDRITE_LOG_SCHEDULER=""), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
