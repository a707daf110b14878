#!/usr/bin/env python3
"""Writes tests/data/text: tiny tokenizers and what Hugging Face makes of them, and chat templates and what
transformers renders with them.

    pip install transformers==5.23.0 tokenizers jinja2 && python tools/golden/text/make_goldens.py

The tokenizers that are there are kept, and the output then does not depend on the run; --train trains them
again, and training breaks ties at random. What lies in tests/data/text/templates/*/ (but rendered.json), and
conversations.json, are written by hand.
"""

import json
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from transformers import PreTrainedTokenizerFast  # noqa: E402

from corpus import golden_texts  # noqa: E402
from snippets import SNIPPETS  # noqa: E402
from tokenizers_of_families import FAMILIES  # noqa: E402

LANGUAGE_MODELS = {"gpt2", "llama3", "qwen2", "qwen35", "cross_border", "llama2", "mistral", "gemma"}
ROOT = Path(__file__).resolve().parents[3] / "tests/data/text"


def dump(value, path, lines=False):
    """One line of JSON, or with `lines` one line for each entry of the outer list."""
    compact = dict(ensure_ascii=True, separators=(",", ":"))
    if lines:
        text = "[\n" + ",\n".join(json.dumps(entry, **compact) for entry in value) + "\n]"
    else:
        text = json.dumps(value, **compact)
    path.write_text(text + "\n", encoding="utf-8")


def bare_range(ids, bare):
    """Where `bare` (no special tokens added) lies in `ids`: [first, last + 1]."""
    for first in range(len(ids) - len(bare) + 1):
        if ids[first:first + len(bare)] == bare:
            return [first, first + len(bare)]
    raise ValueError("special tokens are not around the text")


def encode_goldens(tok, texts):
    entries = []
    for text in texts:
        ids = tok(text).input_ids
        decoded = tok.decode(ids)
        entry = {"ids": ids, "bare": bare_range(ids, tok(text, add_special_tokens=False).input_ids)}
        entry["text"] = None if decoded == text else decoded  # null: the text itself
        entries.append(entry)
    return entries


def decode_goldens(tok, size, count=50):
    rng = random.Random(5)
    special = tok.all_special_ids
    entries = []
    for _ in range(count):
        ids = [rng.choice(special) if special and rng.random() < 0.1 else rng.randrange(size)
               for _ in range(rng.randrange(1, 14))]
        entries.append({"ids": ids, "text": tok.decode(ids), "no_special": tok.decode(ids, skip_special_tokens=True)})
    return entries


def make_tokenizers(train):
    texts = golden_texts()
    ROOT.mkdir(parents=True, exist_ok=True)
    dump(texts, ROOT / "texts.json", lines=True)
    for name, build in FAMILIES.items():
        folder = ROOT / "tokenizers" / name
        if train or not folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            backend, config = build()
            dump(json.loads(backend.to_str()), folder / "tokenizer.json")
            config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        tok = PreTrainedTokenizerFast.from_pretrained(folder)
        size = max(tok.get_vocab().values()) + 1
        golden = {
            "vocab_size": size, "bos": tok.bos_token_id, "eos": tok.eos_token_id,
            "special": sorted(i for i, t in tok.added_tokens_decoder.items() if t.special),
            "added": {t.content: i for i, t in sorted(tok.added_tokens_decoder.items())},
            "encode": encode_goldens(tok, texts if name in LANGUAGE_MODELS else texts[:100]),
            "decode": decode_goldens(tok, size),
        }
        dump(golden, folder / "golden.json")


def render_all(folder):
    """Every conversation through one template; what the template raises is null."""
    tok = PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_object=FAMILIES["bare"]()[0])
    legacy = folder / "chat_template.json"  # a processor's file: transformers' tokenizers do not read it
    if legacy.exists():
        tok.chat_template = json.loads(legacy.read_text())["chat_template"]
    cases = json.loads((ROOT / "conversations.json").read_text())
    rendered = {}
    for case in cases:
        try:
            text = tok.apply_chat_template(case["messages"], tokenize=False, tools=case.get("tools"),
                                           add_generation_prompt=case.get("add_generation_prompt", True),
                                           **case.get("extra", {}))
        except Exception as error:  # jinja2 raises many kinds; what counts is that it does
            print(f"  {folder.name}/{case['name']}: {type(error).__name__}: {str(error)[:90]}")
            text = None
        rendered[case["name"]] = text
    return rendered


def make_templates():
    for folder in sorted((ROOT / "templates").iterdir()):
        dump(render_all(folder), folder / "rendered.json")


def make_snippets():
    context = {
        "s": " Hello, World \n", "t": "a,b,,c", "u": "naïve 🌳 ﬁ", "n": 5, "f": 2.5, "small": 1e-05, "big": 1e16, "neg": -3, "yes": True, "no": False,
        "nothing": None, "l": [3, 1, 2], "words": ["b", "a", "c"], "mixed": [1, "x", None, True, 1.0, [2], {"k": "v"}],
        "d": {"b": 1, "a": {"c": [1, 2.0]}, "z": None}, "html": "<a href=\"x\">&'</a>", "empty": "", "el": [], "ed": {},
        "m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "n": 2}],
    }
    tok = PreTrainedTokenizerFast(tokenizer_object=FAMILIES["bare"]()[0])
    rows = []
    for source in SNIPPETS:
        try:
            text = tok.apply_chat_template([{"role": "user"}], chat_template=source, tokenize=False, **context)
        except Exception as error:
            print(f"  snippet {source!r}: {type(error).__name__}: {str(error)[:90]}")
            text = None
        rows.append([source, text])
    dump(context, ROOT / "snippet_context.json")
    dump(rows, ROOT / "snippets.json", lines=True)


if __name__ == "__main__":
    make_tokenizers(train="--train" in sys.argv[1:])
    make_templates()
    make_snippets()
