"""A byte-level tokenizer without merges: five special tokens, 256 bytes, then filler tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|call|>", "<|end|>"]


def write_tokenizer(folder: Path, size: int) -> None:
    """Special tokens are ids 0..4, so that BOS is 1 and EOS 2 as in the configs; bytes follow in the order of their
    GPT-2 characters (5..260), then `<|extra_N|>` up to `size` ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(SPECIAL)} | {c: i + len(SPECIAL) for i, c in enumerate(alphabet)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", 1)])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    extra = [f"<|extra_{i}|>" for i in range(len(vocab), size)]
    tok.add_tokens([AddedToken(t, normalized=False) for t in extra])
    assert tok.get_vocab_size() == size
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "add_bos_token": True, "bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False, "model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
