"""Writes a folder that Hugging Face's transformers, and anything that reads its format, loads unchanged.

    python export.py JOB OUT/model.pt ../../models/JOB        (also takes a bf16 OUT/model.safetensors)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

import tokenizer
from jobs import JOBS
from hybrid import Hybrid, HybridConfig
from model import Config, Llama


def build(config, dtype=torch.float32):
    """A new model of the class that a config is for."""
    return (Hybrid if isinstance(config, HybridConfig) else Llama)(config, dtype=dtype)


def save_bf16(model, path):
    tensors = {name: w.detach().to(torch.bfloat16).cpu().contiguous() for name, w in model.named_weights()}
    save_file(tensors, path, metadata={"format": "pt"})


def load(path, dtype=torch.float32, device="cpu", config=Config()):
    """A model from a folder, or from float32 masters (.pt) or one .safetensors file of a model with `config`."""
    path = pathlib.Path(path)
    model = build(read_config(path / "config.json") if path.is_dir() else config, dtype)
    if path.suffix == ".pt":
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    else:
        model.load_weights(load_file(path / "model.safetensors" if path.is_dir() else path))
    return model.to(device)


def read_config(path):
    """The Config that `config_json` wrote."""
    c = json.loads(pathlib.Path(path).read_text())
    if c["model_type"] == "qwen3_5_text":
        rope = c["rope_parameters"]
        return HybridConfig(c["hidden_size"], tuple(kind.removesuffix("_attention") for kind in c["layer_types"]),
                            c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"],
                            round(c["head_dim"] * rope["partial_rotary_factor"]), c["linear_num_key_heads"],
                            c["linear_key_head_dim"], c["linear_conv_kernel_dim"], c["intermediate_size"], c["vocab_size"],
                            rope["rope_theta"], c["rms_norm_eps"], c["max_position_embeddings"])
    return Config(c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"],
                  c["head_dim"], c["intermediate_size"], c["vocab_size"], c["rope_theta"], c["rms_norm_eps"],
                  c["max_position_embeddings"], c["model_type"] == "qwen3")


def hybrid_json(c):
    """What sets a hybrid's config apart."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": [f"{kind}_attention" for kind in c.kinds],
        "linear_num_key_heads": c.linear_heads,
        "linear_num_value_heads": c.linear_heads,
        "linear_key_head_dim": c.linear_dim,
        "linear_value_head_dim": c.linear_dim,
        "linear_conv_kernel_dim": c.taps,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_theta": c.rope_theta, "rope_type": "default",
                            "partial_rotary_factor": c.rotary_dim / c.head_dim},
    }


def config_json(c):
    if isinstance(c, HybridConfig):
        return {**shared_json(c), **hybrid_json(c)}
    return shared_json(c) | ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} if c.qk_norm else {})


def shared_json(c):
    # rope_theta, torch_dtype: what readers up to transformers 4 know; rope_parameters, dtype: its successors'.
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": c.dim,
        "intermediate_size": c.ffn_dim,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_theta": c.rope_theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": tokenizer.BOS,
        "eos_token_id": tokenizer.EOS,
        "pad_token_id": tokenizer.PAD,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


def generation_config_json(job):
    return {"bos_token_id": tokenizer.BOS, "eos_token_id": list(job.stop_ids), "pad_token_id": tokenizer.PAD,
            "do_sample": False, "max_new_tokens": job.max_new_tokens}


def write_folder(model, job, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_bf16(model, folder / "model.safetensors")

    def write(name, content):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    write("config.json", config_json(model.config))
    write("generation_config.json", generation_config_json(job))
    write("tokenizer.json", tokenizer.tokenizer_json(job.named_tokens, job.bos))
    write("tokenizer_config.json", tokenizer.tokenizer_config(model.config.context, job.bos, job.eos_name))
    write("special_tokens_map.json",
          {**({"bos_token": "<|bos|>"} if job.bos else {}), "eos_token": job.eos_name, "pad_token": "<|pad|>"})
    (folder / "chat_template.jinja").write_text(job.chat_template, encoding="utf-8")


if __name__ == "__main__":
    job = JOBS[sys.argv[1]]
    write_folder(load(sys.argv[2], config=job.config), job, sys.argv[3])
