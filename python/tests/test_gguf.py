"""A model as a GGUF file: it answers as its folder does, and Python reads its texts."""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE, ROOT

from dendrite import Engine
from dendrite._call_grammar import added_tokens

FOLDER = ROOT / "models/dendrite-tools"
TOOLS = json.loads((FOLDER / "tools.json").read_text())
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def text_of(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name: str, value: Any) -> bytes:
    """A key of metadata: u32, f32, bool, string, or an array of strings or i32."""
    head = text_of(name)
    if isinstance(value, bool):
        return head + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return head + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + text_of(value)
    if value and isinstance(value[0], str):
        return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text_of, value))
    return head + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def metadata(config: dict[str, Any]) -> list[bytes]:
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text())
    tokens = {i: (text, 1) for text, i in tokenizer["model"]["vocab"].items()}
    tokens |= {t["id"]: (t["content"], 3 if t["special"] else 4) for t in tokenizer["added_tokens"]}
    listed = [tokens.get(i, (f"[PAD{i}]", 5)) for i in range(config["vocab_size"])]
    says = {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [text for text, _ in listed],
        "tokenizer.ggml.token_type": [kind for _, kind in listed],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": (FOLDER / "chat_template.jinja").read_text(),
    }
    return [key(name, value) for name, value in says.items()]


def name_of(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
    if name in whole:
        return whole[name] + ".weight"
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{PARTS[part.removesuffix('.weight')]}.weight"


def write(file: pathlib.Path) -> None:
    """The folder's model, its matrices in bf16 as they are, its norms in f32."""
    config = json.loads((FOLDER / "config.json").read_text())
    raw = (FOLDER / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    infos, data = [], b""
    for name, info in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        values = np.frombuffer(raw[8 + size + begin : 8 + size + end], np.uint16)
        values = values.reshape(info["shape"])
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # rows in pairs
            pairs = values.reshape(-1, 2, config["head_dim"] // 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        kind = 30
        if values.ndim == 1:
            values, kind = (values.astype(np.uint32) << 16).view(np.float32), 0
        shape = values.shape[::-1]
        infos.append(
            text_of(name_of(name))
            + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        )
        data += values.tobytes() + bytes(-values.nbytes % 32)
    keys = metadata(config)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(keys)) + b"".join(keys + infos)
    file.write_bytes(head + bytes(-len(head) % 32) + data)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    file = tmp_path_factory.mktemp("gguf") / "tools.gguf"
    write(file)
    with (
        Engine(file, device=DEVICE, threads=1, kv_tokens=8192) as gguf,
        Engine(FOLDER, device=DEVICE, threads=1, kv_tokens=8192) as folder,
    ):
        yield gguf, folder


def test_a_file_gives_the_bits_of_its_folder(engines: tuple[Engine, Engine]) -> None:
    logits = []
    for engine in engines:
        with engine.session() as session:
            logits.append(session.prefill("Will it rain in Rome?").distribution().logits.copy())
    assert logits[0].tobytes() == logits[1].tobytes()


def test_a_file_calls_tools_as_its_folder_does(engines: tuple[Engine, Engine]) -> None:
    gguf, folder = engines
    assert added_tokens(gguf.info.model_path) == added_tokens(folder.info.model_path)
    chat = [{"role": "user", "content": "Will it rain in Rome today?"}]
    replies = []
    for engine in engines:
        with engine.session() as session:
            replies.append(session.chat(chat, TOOLS))
    assert replies[0].ids == replies[1].ids
    assert [call.name for call in replies[0].tool_calls] == ["get_weather"]
