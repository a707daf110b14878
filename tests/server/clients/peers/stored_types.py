"""GGUF files of every type that llama.cpp writes, read by `dendrite serve` and by llama-server: a table on stdout.

    stored_types.py DENDRITE PEER BINARIES VERSION [FOLDER]

PEER: as dendrite (llama_server.py); BINARIES: the folder of llama.cpp's libraries. FOLDER: where the files are kept.

A shipped model becomes a file of float32, of which llama.cpp's own quantizer makes the others. Both servers go on greedily with
the same prompts. Both round what goes into products of packed weights to 8 bits, in blocks of their own: texts may part
where two tokens are nearly alike, and log-probs are near each other. Exit status 1 where they are not.
"""
import contextlib
import ctypes
import pathlib
import sys
import tempfile

import write_gguf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from process import MODELS, Served  # noqa: E402

MODEL = "dendrite-24"
PROMPTS = ["S 24: 2 5 8 10", "S 24: 1 3 4 6", "S 10: 1 2 3 4", "S 24: 4 4 10 10"]
TOKENS = 24
MOST_APART = 0.25  # nats, of tokens' log-probs; three times what was seen
# enum llama_ftype of llama.h
TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17,
         "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}


class QuantizeParams(ctypes.Structure):
    """llama_model_quantize_params of llama.h: its beginning, and room for what may follow."""

    _fields_ = [("threads", ctypes.c_int32), ("ftype", ctypes.c_int), ("output_type", ctypes.c_int),
                ("embedding_type", ctypes.c_int), ("more", ctypes.c_uint8 * 240)]


def library(folder):
    """llama.cpp's, with what it needs."""
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(str(folder / "libllama.so"))
    found.llama_model_quantize_default_params.restype = QuantizeParams
    found.llama_backend_init()
    return found


@contextlib.contextmanager
def running(program, file, *flags):
    server = Served(program, file, *flags).listening()
    try:
        yield server
    finally:
        server.stop()


def compared(ours, theirs):
    """How many texts are the same, and how far log-probs of the tokens that both took are apart."""
    same, apart = 0, 0.0
    for prompt in PROMPTS:
        tokens = ours.ask("POST", "/tokenize", {"prompt": prompt})[1]["tokens"]
        told = theirs.ask("POST", "/tokenize", {"content": prompt, "add_special": True})[1]["tokens"]
        if tokens != told:
            sys.exit(f"{prompt}: {tokens} and {told}; expected the same tokens")
        mine = ours.ask("POST", "/v1/completions", {"prompt": tokens, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1})[1]
        other = theirs.ask("POST", "/completion", {"prompt": tokens, "n_predict": TOKENS, "temperature": 0, "n_probs": 1})[1]
        choice = mine["choices"][0]
        same += choice["text"].strip() == other["content"].strip()
        pairs = zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], other["completion_probabilities"])
        for token, logprob, at in pairs:
            if token != at["token"]:
                break
            apart = max(apart, abs(logprob - at["logprob"]))
    return same, apart


def main(dendrite, peer, binaries, version, folder=None):
    llama = library(pathlib.Path(binaries))
    print(f"| type | the same texts as llama-server {version}, of {len(PROMPTS)} | log-probs apart, at most |\n| --- | --- | --- |")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        whole = pathlib.Path(folder or scratch) / "F32.gguf"
        write_gguf.write(MODELS / MODEL, whole)
        for name, ftype in TYPES.items():
            file = whole.with_name(f"{name}.gguf")
            params = llama.llama_model_quantize_default_params()
            params.threads, params.ftype = 1, ftype
            if llama.llama_model_quantize(str(whole).encode(), str(file).encode(), ctypes.byref(params)) != 0:
                sys.exit(f"{name}: llama.cpp's quantizer failed")
            with running(dendrite, file, "--threads", "1") as ours, running(peer, file) as theirs:
                same, apart = compared(ours, theirs)
            failed = failed or same == 0 or apart > MOST_APART
            print(f"| {name} | {same} | {apart:.3f} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
