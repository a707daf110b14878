"""A model of this repository as a GGUF file, for llama-server: Llama with a token a byte, tied or not.

    write_gguf.py FOLDER FILE.gguf
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors(file):
    """Names and arrays of a safetensors file of bf16, as float32."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for name, of in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        assert of["dtype"] == "BF16", f"{name}: got {of['dtype']}; expected BF16"
        begin, end = (8 + length + offset for offset in of["data_offsets"])
        bits = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
        yield name, bits.view(np.float32).reshape(of["shape"])


def name_of(name):
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return WHOLE[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def paired(rows, heads):
    """The rows of queries or keys, for a rotation of neighbours instead of halves."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write(folder, file):
    config, tokenizer, settings = (json.loads((folder / f"{name}.json").read_text())
                                   for name in ("config", "tokenizer", "tokenizer_config"))
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])

    tokens = {id: (text, gguf.TokenType.NORMAL) for text, id in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    listed = [tokens.get(id, (f"<unused-{id}>", gguf.TokenType.UNUSED)) for id in range(config["vocab_size"])]
    ids = {text: id for id, (text, _) in enumerate(listed)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in listed])
    writer.add_token_types([kind for _, kind in listed])
    writer.add_token_merges(["\u0100 \u0100"])  # there has to be one; this one makes no token
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_add_bos_token("bos_token" in settings)
    if "bos_token" in settings:
        writer.add_bos_token_id(ids[settings["bos_token"]])
    template = folder / "chat_template.jinja"
    writer.add_chat_template(template.read_text() if template.exists() else settings["chat_template"])

    for name, values in tensors(folder / "model.safetensors"):
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = paired(values, heads)
        writer.add_tensor(name_of(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
