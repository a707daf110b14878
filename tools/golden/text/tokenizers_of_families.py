"""Tiny tokenizers, one for each family of tokenizer.json that models use."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from corpus import training_text

LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCAB = 520


def special(*contents):
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def plain(*contents, normalized=False):
    return [AddedToken(content, special=False, normalized=normalized) for content in contents]


def bos_template(token, token_id):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1",
                                         special_tokens=[(token, token_id)])


def byte_level(regex, vocab=VOCAB, cross_border=False):
    """Byte-level BPE. `cross_border`: the merges were learned without the regex, so some cross its borders."""
    tok = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None and not cross_border)
    with_regex = level if regex is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False) if cross_border else with_regex
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.pre_tokenizer = with_regex
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def with_model(tok, **changes):
    """The tokenizer with keys of its model changed (ignore_merges, byte_fallback, ...)."""
    data = json.loads(tok.to_str())
    data["model"].update(changes)
    return Tokenizer.from_str(json.dumps(data))


def sentencepiece_bpe(specials, vocab=VOCAB):
    """BPE with ▁ for spaces and byte tokens, as exported from SentencePiece: ids are specials, bytes, pieces."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=vocab - 256 - len(specials), limit_alphabet=90, show_progress=False))
    data = json.loads(tok.to_str())
    pieces = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    order = specials + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    data["model"].update(vocab={token: i for i, token in enumerate(order)}, byte_fallback=True, fuse_unk=True,
                         unk_token="<unk>")
    data["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(data))


def build_gpt2():
    tok = byte_level(None)
    tok.add_tokens(special("<|endoftext|>"))
    return tok, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
                 "clean_up_tokenization_spaces": True}  # BPE: transformers 5 ignores the clean-up


def build_llama3():
    tok = with_model(byte_level(LLAMA3_REGEX), ignore_merges=True)
    tok.add_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    tok.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), bos_template("<|begin_of_text|>", tok.token_to_id("<|begin_of_text|>"))])
    # ignore_merges shows only for a token that its merges cannot reach.
    data = json.loads(tok.to_str())
    data["model"]["vocab"][" unreachable".replace(" ", "Ġ")] = tok.get_vocab_size()
    return Tokenizer.from_str(json.dumps(data)), {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                                                  "add_bos_token": False}  # tokenizer.json wins


def build_qwen2():
    tok = byte_level(QWEN2_REGEX)
    tok.normalizer = normalizers.NFC()
    tok.add_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tok.add_tokens(plain("<think>", "</think>", "<tool_call>", "</tool_call>"))
    decoder = {str(i): {"content": t.content, "single_word": t.single_word, "lstrip": t.lstrip, "rstrip": t.rstrip,
                        "normalized": t.normalized, "special": t.special}
               for i, t in sorted(tok.get_added_tokens_decoder().items())}
    decoder[str(tok.get_vocab_size())] = {"content": "<extra>", "single_word": False, "lstrip": True, "rstrip": False,
                                          "normalized": False, "special": True}  # only here: the config adds it
    return tok, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "added_tokens_decoder": decoder,
                 "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}


def build_qwen35():
    tok = byte_level(QWEN35_REGEX)
    tok.normalizer = normalizers.NFC()
    tok.add_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + plain("<think>", "</think>"))
    return tok, {"eos_token": "<|im_end|>", "image_token": "<|image_pad|>"}  # a token the config alone names


def build_cross_border():
    tok = byte_level(QWEN2_REGEX, cross_border=True, vocab=700)
    tok.add_tokens(special("<|endoftext|>"))
    return tok, {"eos_token": "<|endoftext|>"}


def build_llama2():
    tok = sentencepiece_bpe(["<unk>", "<s>", "</s>"])
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.add_tokens(special("<unk>", "<s>", "</s>"))
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.post_processor = bos_template("<s>", 1)
    return tok, {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False,
                               "rstrip": False, "single_word": False},
                 "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}  # <pad> is new


def build_mistral():
    tok = sentencepiece_bpe(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tok.add_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    tok.add_tokens([AddedToken("<mask>", special=False, lstrip=True, rstrip=True, normalized=True)])
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tok, {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}  # tokenizer.json's flags stay


def build_gemma():
    tok = sentencepiece_bpe(["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"])
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.add_tokens(special("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"))
    tok.add_tokens(plain("\n\n", "▁▁", "▁▁▁", "<b>", "</b>"))
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.post_processor = bos_template("<bos>", 2)
    return tok, {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


def build_unigram():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(training_text(), trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tok.decoder = decoders.Metaspace()
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", tok.token_to_id("</s>"))])
    return tok, {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def build_wordpiece():
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(training_text(), trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    tok.decoder = decoders.WordPiece(cleanup=False)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(t, tok.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    return tok, {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "clean_up_tokenization_spaces": True}


def build_bare():
    """No decoder, no normalizer: decode() puts a space between two tokens."""
    tok = Tokenizer(models.WordLevel({"<unk>": 0, "tree": 1, "leaf": 2, "</s>": 3, "24": 4}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.add_tokens(special("</s>"))
    return tok, {"eos_token": "</s>"}


FAMILIES = {
    "gpt2": build_gpt2, "llama3": build_llama3, "qwen2": build_qwen2, "qwen35": build_qwen35, "cross_border": build_cross_border,
    "llama2": build_llama2, "mistral": build_mistral, "gemma": build_gemma, "unigram": build_unigram,
    "wordpiece": build_wordpiece, "bare": build_bare,
}
