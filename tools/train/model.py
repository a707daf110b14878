"""The model: a Llama, or with qk_norm a Qwen3, small enough to ship, written for training speed.

Weights of all layers are stacked, [layers, out, in], so that the optimizer sees few large tensors. `named_weights`
gives them Hugging Face's names. Attention is a parameter of the forward pass: training attends within a document
of a packed row, evaluation over one causal sequence.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    dim: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn_dim: int = 768
    vocab: int = 320
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    context: int = 1024
    qk_norm: bool = False  # RMSNorm of each head's q and k before RoPE, as Qwen3 has


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Llama(nn.Module):
    MATRICES = {  # name here -> name in a Hugging Face checkpoint
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    }
    NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    HEAD_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}  # only with qk_norm

    def __init__(self, config=Config(), dtype=torch.float32):
        """`dtype` is what the forward pass computes in; weights are kept in float32 masters."""
        super().__init__()
        self.config, self.dtype = config, dtype
        c, q_dim, kv_dim = config, config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes = {"q": (q_dim, c.dim), "k": (kv_dim, c.dim), "v": (kv_dim, c.dim), "o": (c.dim, q_dim),
                  "gate": (c.ffn_dim, c.dim), "up": (c.ffn_dim, c.dim), "down": (c.dim, c.ffn_dim)}
        for name, shape in shapes.items():
            # What writes into the residual stream starts smaller the more layers write there (GPT-2).
            std = 0.5 * shape[1] ** -0.5 / (math.sqrt(2 * c.layers) if name in ("o", "down") else 1)
            self.register_parameter(name, nn.Parameter(torch.randn(c.layers, *shape) * std))
        for name in self.NORMS:
            self.register_parameter(name, nn.Parameter(torch.ones(c.layers, c.dim)))
        for name in self.HEAD_NORMS if c.qk_norm else ():
            self.register_parameter(name, nn.Parameter(torch.ones(c.layers, c.head_dim)))
        self.embedding = nn.Parameter(torch.randn(c.vocab, c.dim) * 0.02)  # tied with the output
        self.final_norm = nn.Parameter(torch.ones(c.dim))
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).double() / c.head_dim)
        angle = torch.arange(c.context)[:, None] * inverse
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # [context, head_dim / 2]
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, tokens, attention=causal_attention, first=0, streams=None, positions=None):
        """Final hidden states [rows, length, dim] of `tokens` [rows, length], which stand at positions from `first` on.
        The list `streams` takes the residual stream after each layer; `positions` [length] are other positions than that."""
        c = self.config
        rows, length = tokens.shape
        where = slice(first, first + length) if positions is None else positions
        cos, sin = (table[where].to(self.dtype) for table in (self.cos, self.sin))
        weights = {name: getattr(self, name).to(self.dtype).unbind(0) for name in self.stacked_weights()}

        def heads(x, norm=None):  # [rows, length, n * head_dim] -> [rows, n, length, head_dim]
            x = x.view(rows, length, -1, c.head_dim).transpose(1, 2)
            return x if norm is None else F.rms_norm(x, (c.head_dim,), norm, c.norm_eps)

        def rotate(x):
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        hidden = F.embedding(tokens, self.embedding).to(self.dtype)
        for i in range(c.layers):
            w = {name: stack[i] for name, stack in weights.items()}
            x = F.rms_norm(hidden, (c.dim,), w["attn_norm"], c.norm_eps)
            qkv = F.linear(x, torch.cat((w["q"], w["k"], w["v"])))
            q, k, v = qkv.split((w["q"].shape[0], w["k"].shape[0], w["v"].shape[0]), dim=-1)
            attended = attention(rotate(heads(q, w.get("q_norm"))), rotate(heads(k, w.get("k_norm"))), heads(v))
            hidden = hidden + F.linear(attended.transpose(1, 2).reshape(rows, length, -1), w["o"])
            x = F.rms_norm(hidden, (c.dim,), w["mlp_norm"], c.norm_eps)
            gate, up = F.linear(x, torch.cat((w["gate"], w["up"]))).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, w["down"])
            if streams is not None:
                streams.append(hidden)
        return F.rms_norm(hidden, (c.dim,), self.final_norm.to(self.dtype), c.norm_eps)

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.to(self.dtype)).float()

    def stacked_weights(self):
        """{name here: name in a checkpoint} of what every layer has."""
        return {**self.MATRICES, **self.NORMS, **(self.HEAD_NORMS if self.config.qk_norm else {})}

    def matrices(self):
        return [getattr(self, name) for name in self.MATRICES]

    def named_weights(self):
        """(Hugging Face name, tensor) of every weight; the tied output is not repeated."""
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.final_norm
        for name, theirs in self.stacked_weights().items():
            for i, weight in enumerate(getattr(self, name).unbind(0)):
                yield f"model.layers.{i}.{theirs}.weight", weight

    @torch.no_grad()
    def load_weights(self, tensors):
        """Copies in tensors named as by `named_weights`; all must be there."""
        for name, weight in self.named_weights():
            weight.copy_(tensors[name])
        return self
