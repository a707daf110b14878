"""A hybrid, as Qwen3.5 is one, small enough to ship: delta networks, and full attention with a gate; and its MTP head,
which says from the hidden state of a token and the next token what comes after that.

Weights of layers of a kind are stacked, as in model.py; the head's layer is one of full attention. `named_weights` gives
them the names of the Hugging Face's checkpoints.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

import tokenizer
from delta import FORGETS, delta_rule
from model import causal_attention


@dataclasses.dataclass
class HybridConfig:
    dim: int = 96
    kinds: tuple = ("linear", "linear", "linear", "full")  # of layers
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 32
    rotary_dim: int = 8
    linear_heads: int = 3
    linear_dim: int = 32  # of keys, and of values
    taps: int = 4
    ffn_dim: int = 160
    vocab: int = 320
    rope_theta: float = 1e5
    norm_eps: float = 1e-6
    context: int = 8192

    @property
    def layers(self):
        return len(self.kinds)


class Hybrid(nn.Module):
    FULL = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    LINEAR = {"qkv": "linear_attn.in_proj_qkv", "z": "linear_attn.in_proj_z", "b": "linear_attn.in_proj_b",
              "a": "linear_attn.in_proj_a", "out": "linear_attn.out_proj"}
    FFN = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    # Stored less 1.
    NORMS = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    HEAD_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}

    def __init__(self, config=HybridConfig(), dtype=torch.float32):
        """`dtype` is what products are computed in; recurrences are in float32."""
        super().__init__()
        self.config, self.dtype = config, dtype
        c = config
        # Of each layer, and of the head's at the end: its place in the stacks of its kind.
        self.kinds = (*c.kinds, "full")
        self.places = [self.kinds[:i].count(kind) for i, kind in enumerate(self.kinds)]
        full, linear = self.kinds.count("full"), self.kinds.count("linear")
        q, kv, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.linear_heads * c.linear_dim
        stacks = {"q": (full, 2 * q, c.dim), "k": (full, kv, c.dim), "v": (full, kv, c.dim), "o": (full, c.dim, q),
                  "qkv": (linear, 3 * wide, c.dim), "z": (linear, wide, c.dim), "b": (linear, c.linear_heads, c.dim),
                  "a": (linear, c.linear_heads, c.dim), "out": (linear, c.dim, wide),
                  "gate": (len(self.kinds), c.ffn_dim, c.dim), "up": (len(self.kinds), c.ffn_dim, c.dim),
                  "down": (len(self.kinds), c.dim, c.ffn_dim), "join": (1, c.dim, 2 * c.dim)}
        for name, shape in stacks.items():
            std = 0.5 * shape[2] ** -0.5 / (math.sqrt(2 * c.layers) if name in ("o", "out", "down") else 1)
            self.register_parameter(name, nn.Parameter(torch.randn(*shape) * std))
        norms = {"mixer_norm": (len(self.kinds), c.dim), "ffn_norm": (len(self.kinds), c.dim), "q_norm": (full, c.head_dim),
                 "k_norm": (full, c.head_dim), "final_norm": (c.dim,), "ahead_norms": (3, c.dim)}
        for name, shape in norms.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.linear_norm = nn.Parameter(torch.ones(linear, c.linear_dim))
        self.conv = nn.Parameter(torch.randn(linear, 3 * wide, c.taps) * 0.3)
        # Decays of a row from 1 / 1000 to 1 / 10.
        steps = torch.exp(torch.rand(linear, c.linear_heads) * math.log(100) + math.log(0.001))
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.a_log = nn.Parameter(torch.zeros(linear, c.linear_heads))
        self.embedding = nn.Parameter(torch.randn(c.vocab, c.dim) * 0.02)  # tied with the output
        angle = torch.arange(c.context)[:, None] * c.rope_theta ** (-torch.arange(0, c.rotary_dim, 2).double() / c.rotary_dim)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def norm(self, x, weight):
        return F.rms_norm(x, (x.shape[-1],), 1 + weight.to(x.dtype), self.config.norm_eps)

    def product(self, x, name, place):
        return F.linear(x, getattr(self, name)[place].to(x.dtype))

    def full(self, x, place, attention):
        c, (rows, length, _) = self.config, x.shape
        cos, sin = (table[:length].to(x.dtype) for table in (self.cos, self.sin))

        def rotate(heads):
            a, b, rest = heads.split((c.rotary_dim // 2, c.rotary_dim // 2, c.head_dim - c.rotary_dim), -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

        def heads(name, width):
            return self.product(x, name, place).view(rows, length, -1, width).transpose(1, 2)

        q, gate = heads("q", 2 * c.head_dim).chunk(2, -1)
        q, k = (rotate(self.norm(y, norm[place])) for y, norm in ((q, self.q_norm), (heads("k", c.head_dim), self.k_norm)))
        out = attention(q, k, heads("v", c.head_dim)) * gate.sigmoid()
        return self.product(out.transpose(1, 2).reshape(rows, length, -1), "o", place)

    @staticmethod
    def convolved(x, taps, begins):
        """Of each row and those of its document before it, the last at the last tap."""
        document, out = begins.cumsum(1), 0
        for back in range(taps.shape[1]):
            before, of_it = (F.pad(y, pad)[:, : x.shape[1]] for y, pad in ((x, (0, 0, back, 0)), (document, (back, 0))))
            out = out + before * taps[:, -1 - back] * (of_it == document)[..., None]
        return out

    def linear(self, x, place, begins):
        c, (rows, length, _) = self.config, x.shape
        qkv = self.convolved(self.product(x, "qkv", place), self.conv[place].to(x.dtype), begins)
        q, k, v = F.silu(qkv).float().view(rows, length, 3 * c.linear_heads, -1).transpose(1, 2).chunk(3, 1)
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        step = F.softplus(self.product(x, "a", place).float() + self.dt_bias[place])
        g = (-self.a_log[place].exp() * step + FORGETS * begins[..., None]).mT
        out = delta_rule(q * c.linear_dim**-0.5, k, v, g, self.product(x, "b", place).float().sigmoid().mT)
        out = F.rms_norm(out.transpose(1, 2), (c.linear_dim,), self.linear_norm[place], c.norm_eps).to(x.dtype)
        out = out.flatten(2) * F.silu(self.product(x, "z", place))
        return self.product(out, "out", place)

    def layer(self, hidden, i, attention, begins):
        x = self.norm(hidden, self.mixer_norm[i])
        place = self.places[i]
        hidden = hidden + (self.full(x, place, attention) if self.kinds[i] == "full" else self.linear(x, place, begins))
        x = self.norm(hidden, self.ffn_norm[i])
        return hidden + self.product(F.silu(self.product(x, "gate", i)) * self.product(x, "up", i), "down", i)

    def forward(self, tokens, attention=causal_attention):
        """Final hidden states [rows, length, dim] of `tokens` [rows, length]. At a <|bos|> all is forgotten; `attention` has to
        see to that, too."""
        hidden = F.embedding(tokens, self.embedding).to(self.dtype)
        begins = (tokens == tokenizer.BOS).float()
        for i in range(self.config.layers):
            hidden = self.layer(hidden, i, attention, begins)
        return self.norm(hidden, self.final_norm)

    def ahead(self, tokens, hidden, attention=causal_attention):
        """The head's hidden states [rows, length, dim]: at t, of hidden[t - 1] and tokens[t], for tokens[t + 1]."""
        embedded = F.embedding(tokens, self.embedding).to(self.dtype)
        pair = (self.norm(embedded, self.ahead_norms[0]), self.norm(F.pad(hidden[:, :-1], (0, 0, 1, 0)), self.ahead_norms[1]))
        x = self.product(torch.cat(pair, -1), "join", 0) * (tokens != tokenizer.BOS)[..., None]
        return self.norm(self.layer(x, self.config.layers, attention, None), self.ahead_norms[2])

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.to(self.dtype)).float()

    def matrices(self):
        small = ("a", "b")  # a row a head: no matrix to orthogonalize
        names = [name for part in (self.FULL, self.LINEAR, self.FFN) for name in part if name not in small]
        return [weight for name in (*names, "join") if len(weight := getattr(self, name))]

    def named_weights(self):
        """(Hugging Face name, tensor) of every weight; the tied output is not repeated."""
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.final_norm
        for i, (kind, place) in enumerate(zip(self.kinds, self.places)):
            layer = f"model.layers.{i}." if i < self.config.layers else "mtp.layers.0."
            for name, theirs in {**self.NORMS, **self.FFN}.items():
                yield f"{layer}{theirs}.weight", getattr(self, name)[i]
            for name, theirs in ({**self.FULL, **self.HEAD_NORMS} if kind == "full" else self.LINEAR).items():
                yield f"{layer}{theirs}.weight", getattr(self, name)[place]
            if kind == "linear":
                yield f"{layer}linear_attn.conv1d.weight", self.conv[place][:, None]
                yield f"{layer}linear_attn.norm.weight", self.linear_norm[place]
                yield f"{layer}linear_attn.A_log", self.a_log[place]
                yield f"{layer}linear_attn.dt_bias", self.dt_bias[place]
        yield "mtp.fc.weight", self.join[0]
        for i, name in enumerate(("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")):
            yield f"mtp.{name}.weight", self.ahead_norms[i]

    @torch.no_grad()
    def load_weights(self, tensors):
        """Copies in tensors named as by `named_weights`; all must be there."""
        for name, weight in self.named_weights():
            weight.copy_(tensors[name])
        return self
