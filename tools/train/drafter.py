"""A block drafter (DFlash, arXiv 2602.06036): a few layers that fill a block of masks in one pass.

It reads a frozen target's residual streams: H = norm(W_fc [streams after the tapped layers]), one row a token, gives
each layer keys and values of the context, K = rope(k_norm(W_k H)), V = W_v H, and nothing else. A block is the last
known token and masks after it, in the target's embedding; its rows see the context before the block and all of the
block. The row at a position says, through the target's output matrix, which token stands *there*.
"""

import dataclasses
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import tokenizer

MASK = tokenizer.VOCAB - 1  # a reserved special, which no text has


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    dim: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn_dim: int = 512
    block_size: int = 16  # the last known token and the masks
    taps: tuple = (1, 4, 7)  # layers of the target, from 0
    target_layers: int = 8
    vocab: int = tokenizer.VOCAB
    mask_token: int = MASK
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    context: int = 1024


class Drafter(nn.Module):
    """Its weights are stacked over layers, as the Llama's are."""

    MATRICES = {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    }
    NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
             "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}

    def __init__(self, config=DrafterConfig(), dtype=torch.float32):
        """`dtype` is what the forward pass computes in; weights are kept in float32 masters."""
        super().__init__()
        self.config, self.dtype = config, dtype
        c, q_dim, kv_dim = config, config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes = {"q": (q_dim, c.dim), "k": (kv_dim, c.dim), "v": (kv_dim, c.dim), "o": (c.dim, q_dim),
                  "gate": (c.ffn_dim, c.dim), "up": (c.ffn_dim, c.dim), "down": (c.dim, c.ffn_dim)}
        for name, shape in shapes.items():
            std = 0.5 * shape[1] ** -0.5 / (math.sqrt(2 * c.layers) if name in ("o", "down") else 1)
            self.register_parameter(name, nn.Parameter(torch.randn(c.layers, *shape) * std))
        for name in self.NORMS:
            width = c.head_dim if name in ("q_norm", "k_norm") else c.dim
            self.register_parameter(name, nn.Parameter(torch.ones(c.layers, width)))
        wide = len(c.taps) * c.dim
        self.fc = nn.Parameter(torch.randn(1, c.dim, wide) * 0.5 * wide ** -0.5)  # a stack of one, as Muon wants it
        self.hidden_norm = nn.Parameter(torch.ones(c.dim))
        self.final_norm = nn.Parameter(torch.ones(c.dim))
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).double() / c.head_dim)
        angle = torch.arange(c.context)[:, None] * inverse
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # [context, head_dim / 2]
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, features, block, positions, attention):
        """Final hidden states [rows, block rows, dim].

        features [rows, length, taps * dim]: the target's streams at positions 0, 1, ...; block [rows, block rows, dim]:
        embeddings, of any number of blocks; positions [rows, block rows]. attention(q, k, v) knows what sees what; its
        keys are those of the context, then the block's.
        """
        c = self.config
        rows, length = features.shape[:2]
        q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
        weights = {name: getattr(self, name).to(self.dtype).unbind(0) for name in (*self.MATRICES, *self.NORMS)}
        context = F.linear(features.to(self.dtype), self.fc[0].to(self.dtype))
        context = F.rms_norm(context, (c.dim,), self.hidden_norm.to(self.dtype), c.norm_eps)
        tables = (self.cos.to(self.dtype), self.sin.to(self.dtype))
        of_context = [table[:length] for table in tables]
        of_block = [table[positions][:, None] for table in tables]  # [rows, 1, block rows, head_dim / 2]

        def heads(x, norm=None):  # [rows, n, heads * head_dim] -> [rows, heads, n, head_dim]
            x = x.view(rows, x.shape[1], -1, c.head_dim).transpose(1, 2)
            return x if norm is None else F.rms_norm(x, (c.head_dim,), norm, c.norm_eps)

        def rotate(x, cos, sin):
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        hidden = block.to(self.dtype)
        for i in range(c.layers):
            w = {name: stack[i] for name, stack in weights.items()}
            x = F.rms_norm(hidden, (c.dim,), w["attn_norm"], c.norm_eps)
            q, k, v = F.linear(x, torch.cat((w["q"], w["k"], w["v"]))).split((q_dim, kv_dim, kv_dim), dim=-1)
            # Context does not pass the layer's norm: hidden_norm was its own.
            context_k, context_v = F.linear(context, torch.cat((w["k"], w["v"]))).split((kv_dim, kv_dim), dim=-1)
            keys = torch.cat((rotate(heads(context_k, w["k_norm"]), *of_context),
                              rotate(heads(k, w["k_norm"]), *of_block)), dim=2)
            values = torch.cat((heads(context_v), heads(v)), dim=2)
            attended = attention(rotate(heads(q, w["q_norm"]), *of_block), keys, values)
            hidden = hidden + F.linear(attended.transpose(1, 2).reshape(rows, -1, q_dim), w["o"])
            x = F.rms_norm(hidden, (c.dim,), w["mlp_norm"], c.norm_eps)
            gate, up = F.linear(x, torch.cat((w["gate"], w["up"]))).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, w["down"])
        return F.rms_norm(hidden, (c.dim,), self.final_norm.to(self.dtype), c.norm_eps)

    def matrices(self):
        return [self.fc, *(getattr(self, name) for name in self.MATRICES)]

    def named_weights(self):
        """(name in z-lab's checkpoints, tensor) of every weight."""
        yield "fc.weight", self.fc[0]
        yield "hidden_norm.weight", self.hidden_norm
        yield "norm.weight", self.final_norm
        for name, theirs in {**self.MATRICES, **self.NORMS}.items():
            for i, weight in enumerate(getattr(self, name).unbind(0)):
                yield f"layers.{i}.{theirs}.weight", weight

    @torch.no_grad()
    def load_weights(self, tensors):
        """Copies in tensors named as by `named_weights`; all must be there."""
        for name, weight in self.named_weights():
            weight.copy_(tensors[name])
        return self


def config_json(c):
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
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
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["full_attention"] * c.layers,  # and so not causal
        "block_size": c.block_size,
        "num_target_layers": c.target_layers,
        "dflash_config": {"mask_token_id": c.mask_token, "target_layer_ids": list(c.taps)},
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


def read_config(path):
    """The DrafterConfig that `config_json` wrote."""
    c = json.loads(pathlib.Path(path).read_text())
    own = c["dflash_config"]
    return DrafterConfig(c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"],
                         c["head_dim"], c["intermediate_size"], c["block_size"], tuple(own["target_layer_ids"]),
                         c["num_target_layers"], c["vocab_size"], own["mask_token_id"], c["rope_theta"],
                         c["rms_norm_eps"], c["max_position_embeddings"])


def write_folder(drafter, folder):
    """config.json and model.safetensors, bf16, as z-lab's checkpoints are laid out."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: w.detach().to(torch.bfloat16).cpu().contiguous() for name, w in drafter.named_weights()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_json(drafter.config), indent=1) + "\n", encoding="utf-8")


def load(folder, dtype=torch.float32, device="cpu"):
    folder = pathlib.Path(folder)
    drafter = Drafter(read_config(folder / "config.json"), dtype=dtype)
    return drafter.load_weights(load_file(folder / "model.safetensors")).to(device)
