"""The list of golden models: which architecture feature each one carries.

A `Spec` is a small random model. `config` holds keyword arguments of the transformers config class; `edit`
rewrites the saved config.json (to take on the spellings that files in the wild have); `tensors` rewrites the
saved tensors; `contrasts` are wrong readings of the same folder, which must give visibly different logits:
they prove that the golden can catch the bug it is there for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import torch

Config = dict[str, Any]


@dataclass
class Spec:
    name: str
    arch: str  # llama | qwen2 | qwen3 | mistral | mixtral | qwen3_moe | qwen3_next | qwen3_5[_moe][_text]
    covers: str
    config: Config
    dtype: torch.dtype = torch.bfloat16
    edit: Callable[[Config], Config] | None = None
    # "f32_norms" | "f32_decays" | "inv_freq" | "lm_head_differs" | "lm_head_same" | "fused_experts"
    tensors: str | None = None
    shard_bytes: int | None = None
    tokenizer: bool = False
    eos_trap: bool = False  # choose eos ids from the greedy tokens (see writer.set_eos)
    greedy50: bool = False
    id_limit: int | None = None  # input ids stay below this (default: vocab_size)
    seed: int = 0
    # what is read wrongly -> how; see reference.load_contrast
    contrasts: dict[str, Config] = field(default_factory=dict)


def dims(h: int, i: int, layers: int, nq: int, nkv: int, d: int | None, v: int, **more: Any) -> Config:
    out = dict(
        hidden_size=h, intermediate_size=i, num_hidden_layers=layers, num_attention_heads=nq,
        num_key_value_heads=nkv, vocab_size=v, rms_norm_eps=1e-5, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2,
    )
    if d is not None:
        out["head_dim"] = d
    return out | more


def small(**more: Any) -> Config:
    """The base of variants that differ in their config only: about 80 KB."""
    return dims(32, 72, 2, 2, 1, 32, 272) | more


def rope(kind: str, theta: float = 10000.0, **more: Any) -> Config:
    return {"rope_type": kind, "rope_theta": theta, **more}


LLAMA3 = rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)


def old_spelling(scaling: Config | None = None, **more: Any) -> Callable[[Config], Config]:
    """config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""

    def edit(c: Config) -> Config:
        parameters = c.pop("rope_parameters")
        c["rope_theta"] = parameters["rope_theta"]
        c["rope_scaling"] = scaling
        c["torch_dtype"] = c.pop("dtype")
        c.pop("layer_types", None)
        c["transformers_version"] = "4.43.0"
        return c | more

    return edit


def drop(*keys: str, then: Callable[[Config], Config] | None = None, **more: Any) -> Callable[[Config], Config]:
    def edit(c: Config) -> Config:
        c = then(c) if then else c
        for k in keys:
            c.pop(k, None)
        return c | more

    return edit


def default_rope(theta: float = 10000.0) -> Config:
    return {"config": {"rope_parameters": rope("default", theta)}}


def hybrid(theta: float, factor: float, sections: list[int], **more: Any) -> Config:
    """Qwen3.5's text config: about 80 KB."""
    parameters = rope("default", theta, partial_rotary_factor=factor, mrope_section=sections, mrope_interleaved=True)
    linear = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
    return dims(32, 72, 4, 2, 1, 32, 272, rope_parameters=parameters) | linear | more


def experts(count: int, chosen: int, ffn: int, **more: Any) -> Config:
    return dict(num_experts=count, num_experts_per_tok=chosen, moe_intermediate_size=ffn) | more


# Mistaken readings of any mixture.
EXPERT_CONTRASTS: dict[str, Config] = {
    "one expert a token": {"config": {"num_experts_per_tok": 1}},
    "gates read as ups": {"swap": "gate_up_proj"},
    "experts in another order": {"roll": "mlp.gate.weight"},
}
SHARED_CONTRASTS: dict[str, Config] = EXPERT_CONTRASTS | {
    "the shared expert's gate ignored": {"zero": "shared_expert_gate.weight"},
    "no shared expert": {"zero": "shared_expert.down_proj.weight"},
}


VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, num_position_embeddings=4,
              out_hidden_size=32)

# Mistaken readings of any hybrid.
HYBRID_CONTRASTS: dict[str, Config] = {
    "norms not zero-centred": {"shift": {"layernorm": -1.0, "model.norm": -1.0, "q_norm": -1.0, "k_norm": -1.0}},
    "the heads' norm zero-centred": {"shift": {"linear_attn.norm": 1.0}},
    "q_proj read as all q, then all gates": {"halves": "q_proj.weight"},
    "value heads go by key heads in turns": {"turns": True},
}

PACKED_CONTRASTS = {what: HYBRID_CONTRASTS[what] for what in HYBRID_CONTRASTS if "in turns" not in what}


SPECS: list[Spec] = [
    Spec("llama2", "llama", "Llama 2: MHA, untied", dims(64, 160, 2, 2, 2, 32, 320), tokenizer=True,
         contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama3_tied", "llama",
         "Llama 3.2: GQA 4:1, tied, heads*head_dim != hidden, llama3 RoPE, generation_config's eos list wins",
         dims(64, 128, 2, 4, 1, 64, 384, tie_word_embeddings=True, rope_parameters=LLAMA3),
         tokenizer=True, eos_trap=True, contrasts={"llama3 scaling ignored": default_rope(5e5)}),
    Spec("llama_linear", "llama", "linear RoPE scaling, new spelling (rope_parameters, dtype)",
         small(rope_parameters=rope("linear", factor=4.0), tie_word_embeddings=True),
         contrasts={"scaling ignored": default_rope()}),
    Spec("llama_yarn", "llama", "yarn; the prompt is longer than original_max_position_embeddings (64)",
         dims(32, 72, 2, 2, 1, 64, 272, rope_parameters=YARN, max_position_embeddings=256),
         contrasts={"scaling ignored": default_rope(),
                    "attention factor ignored": {"config": {"rope_parameters": YARN | {"attention_factor": 1.0}}}}),
    Spec("llama_yarn_mscale", "llama", "yarn with beta_fast, beta_slow, mscale, mscale_all_dim, truncate=false",
         dims(32, 72, 2, 2, 1, 64, 272, max_position_embeddings=1024,
              rope_parameters=rope("yarn", 50000.0, factor=16.0, original_max_position_embeddings=64, beta_fast=16.0,
                                   beta_slow=0.5, mscale=1.0, mscale_all_dim=0.4, truncate=False)),
         contrasts={"plain yarn": {"config": {"rope_parameters": rope(
             "yarn", 50000.0, factor=16.0, original_max_position_embeddings=64)}}}),
    Spec("llama_dynamic", "llama", "dynamic NTK, used within max_position_embeddings (256): no scaling applies",
         small(rope_parameters=rope("dynamic", factor=4.0), max_position_embeddings=256),
         contrasts={"scaled from the start": {"config": {"max_position_embeddings": 64}},
                    "read as linear": {"config": {"rope_parameters": rope("linear", factor=4.0)}}}),
    Spec("tinyllama", "llama", "TinyLlama-like: GQA 8:1, head_dim 8, three layers",
         dims(64, 120, 3, 8, 1, 8, 320), greedy50=True, contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama_bias", "llama", "attention_bias (q, k, v, o) and mlp_bias; rms_norm_eps large enough to be visible",
         small(attention_bias=True, mlp_bias=True, rms_norm_eps=0.02),
         contrasts={"attention bias dropped": {"config": {"attention_bias": False}},
                    "mlp bias dropped": {"config": {"mlp_bias": False}},
                    "eps 1e-5": {"config": {"rms_norm_eps": 1e-5}}}),
    Spec("llama_d24", "llama", "head_dim 24 (no power of two), odd vocabulary 331, intermediate 76",
         dims(48, 76, 2, 2, 1, 24, 331), contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama_d80", "llama", "head_dim 80, heads*head_dim != hidden", dims(32, 72, 2, 2, 1, 80, 272),
         contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("qwen2", "qwen2",
         "Qwen2.5: q, k, v bias, tied, the hub's spelling; use_sliding_window=false beside a sliding_window of 16",
         dims(64, 160, 2, 2, 1, None, 320, tie_word_embeddings=True, rope_parameters=rope("default", 1e6)),
         edit=old_spelling(use_sliding_window=False, sliding_window=16, max_window_layers=1),
         contrasts={"bias dropped": {"zero": ".bias"},
                    "window applied": {"config": {"use_sliding_window": True}},
                    "theta 1e4": {"config": {"rope_theta": 1e4}}}),
    Spec("qwen2_max_window", "qwen2", "use_sliding_window with max_window_layers 1 of 3: layers 1 and 2 slide",
         small(num_hidden_layers=3, use_sliding_window=True, sliding_window=16, max_window_layers=1) | {"head_dim": 16},
         edit=drop("layer_types", "head_dim", then=old_spelling()),
         contrasts={"no window": {"config": {"use_sliding_window": False}},
                    "all layers slide": {"config": {"max_window_layers": 0}},
                    "the first layers slide": {"config": {"layer_types": [
                        "sliding_attention", "full_attention", "full_attention"]}}}),
    Spec("qwen2_layer_types", "qwen2", "layer_types [sliding, full, sliding], which max_window_layers contradicts",
         small(num_hidden_layers=3, use_sliding_window=True, sliding_window=16, max_window_layers=1,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=YARN)
         | {"head_dim": 16},
         edit=drop("head_dim"),
         contrasts={"no window": {"config": {"use_sliding_window": False, "layer_types": ["full_attention"] * 3}},
                    "max_window_layers followed": {"config": {"layer_types": None}}}),
    Spec("qwen3", "qwen3", "Qwen3: q/k norm, head_dim 128, heads*head_dim != hidden, tied",
         dims(64, 128, 2, 2, 1, 128, 320, tie_word_embeddings=True, rope_parameters=rope("default", 1e6)),
         tokenizer=True, greedy50=True,
         contrasts={"q/k norm weights ignored": {"ones": ["q_norm", "k_norm"]}, "theta 1e4": default_rope()}),
    Spec("qwen3_bias", "qwen3", "Qwen3 as the hub spells it, untied, with attention_bias (q, k, v, o)",
         small(attention_bias=True, rope_parameters=rope("default", 1e6)),
         edit=old_spelling(sliding_window=None, max_window_layers=2),
         contrasts={"bias dropped": {"config": {"attention_bias": False}},
                    "o bias dropped": {"zero": "o_proj.bias"}}),
    Spec("qwen3_swa", "qwen3", "Qwen3 with use_sliding_window, window 24, from layer 1",
         small(num_hidden_layers=3, tie_word_embeddings=True, use_sliding_window=True, sliding_window=24,
               max_window_layers=1),
         edit=drop("layer_types"),
         contrasts={"no window": {"config": {"use_sliding_window": False}},
                    "window 25": {"config": {"sliding_window": 25}}}),
    Spec("mistral_swa", "mistral", "Mistral v0.1: every layer slides, window 16, prompt of 130",
         dims(64, 144, 2, 4, 2, 32, 320, sliding_window=16), edit=drop("head_dim", then=old_spelling(), head_dim=32),
         contrasts={"no window": {"config": {"sliding_window": None}},
                    "window 15": {"config": {"sliding_window": 15}},
                    "window 17": {"config": {"sliding_window": 17}}}),
    Spec("mistral", "mistral", "Mistral v0.3 / Nemo: no window, heads*head_dim != hidden",
         dims(32, 72, 2, 4, 2, 16, 272, sliding_window=None, rope_parameters=rope("default", 1e6)),
         edit=old_spelling(sliding_window=None),
         contrasts={"window 64": {"config": {"sliding_window": 64}}}),
    Spec("llama_f16", "llama", "f16 tensors", small(), dtype=torch.float16,
         contrasts={"tensors rounded to bf16": {"round": "bf16"}}),
    Spec("llama_f32", "llama", "f32 tensors", small(tie_word_embeddings=True), dtype=torch.float32,
         contrasts={"tensors rounded to bf16": {"round": "bf16"}, "tensors rounded to f16": {"round": "f16"}}),
    Spec("llama_mixed", "llama", "bf16 matrices, f32 norms", small(), tensors="f32_norms",
         contrasts={"norms rounded to bf16": {"round": "bf16"}}),
    Spec("llama_vocab_padded", "llama", "vocabulary 384 over a tokenizer of 261", small(vocab_size=384),
         tokenizer=True, id_limit=261, contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama_defaults", "llama",
         "config.json without num_key_value_heads, rope_theta, head_dim, tie_word_embeddings, biases and dtype",
         dims(32, 72, 2, 4, 4, 8, 272),
         edit=drop("num_key_value_heads", "rope_theta", "rope_scaling", "head_dim", "tie_word_embeddings",
                   "attention_bias", "mlp_bias", "attention_dropout", "torch_dtype", "use_cache", "pretraining_tp",
                   "initializer_range", "pad_token_id", then=old_spelling()),
         contrasts={"theta 5e5": {"config": {"rope_theta": 5e5}}}),
    Spec("llama_old_llama3", "llama", "Llama 3.1 as the hub spells it: rope_scaling.rope_type=llama3, torch_dtype",
         small(rope_parameters=LLAMA3),
         edit=old_spelling({k: v for k, v in LLAMA3.items() if k != "rope_theta"}),
         contrasts={"scaling ignored": {"config": {"rope_scaling": None}},
                    "theta ignored": {"config": {"rope_theta": 1e4}}}),
    Spec("llama_old_yarn", "llama", "the oldest spelling: rope_scaling.type=yarn; original length absent (= maximum)",
         small(rope_parameters=YARN, max_position_embeddings=256),
         edit=old_spelling({"type": "yarn", "factor": 4.0}),
         contrasts={"scaling ignored": {"config": {"rope_scaling": None}}}),
    Spec("llama_rope_both", "llama", "rope_theta at the top (1e6) and in rope_parameters (1e4): the latter wins",
         small(), edit=drop(rope_theta=1e6), contrasts={"top level wins": default_rope(1e6)}),
    Spec("llama_sharded", "llama", "three shards and an index", small(), shard_bytes=36_000,
         contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama_inv_freq", "llama", "rotary_emb.inv_freq tensors (rounded to bf16), which must be ignored",
         small(rope_parameters=rope("linear", factor=2.0)), tensors="inv_freq",
         contrasts={"inv_freq tensors used": {"inv_freq": "bf16"}}),
    Spec("llama_tied_lm_head", "llama", "tie_word_embeddings=true and an equal lm_head.weight in the file",
         small(tie_word_embeddings=True), tensors="lm_head_same", contrasts={"theta 5e5": default_rope(5e5)}),
    Spec("llama_tied_other_lm_head", "llama",
         "tie_word_embeddings=true and a different lm_head.weight in the file: transformers then uses lm_head",
         small(tie_word_embeddings=True), tensors="lm_head_differs", seed=1,
         contrasts={"tied": {"tie": True}}),
    Spec("qwen3_5", "qwen3_5",
         "Qwen3.5: text_config beside a vision tower, model.language_model.*, tied, f32 A_log and norms of heads",
         hybrid(1e7, 0.25, [2, 1, 1], tie_word_embeddings=True), tensors="f32_decays",
         contrasts=HYBRID_CONTRASTS | {
             "theta 1e4": {"config": {"rope_parameters": rope("default", partial_rotary_factor=0.25)}},
             "A_log and norms of heads rounded to bf16": {"round": "bf16"},
         }),
    Spec("qwen3_5_text", "qwen3_5_text",
         "Qwen3.5's text model alone: untied, full attention first, attention_bias, key and value dims differ, 3 taps",
         hybrid(1e4, 0.5, [4, 2, 2], attention_bias=True, linear_value_head_dim=12, linear_conv_kernel_dim=3,
                layer_types=["full_attention", "linear_attention", "full_attention", "linear_attention"]),
         contrasts=HYBRID_CONTRASTS | {
             "a quarter rotated": {"config": {"rope_parameters": rope("default", partial_rotary_factor=0.25)}},
             "bias dropped": {"config": {"attention_bias": False}},
             "taps the other way round": {"flip": "conv1d.weight"},
         }),
    Spec("qwen3_moe", "qwen3_moe",
         "Qwen3-MoE: weights of the chosen divided by their sum, a dense layer among mixtures, num_experts as on the hub",
         small(num_hidden_layers=4, mlp_only_layers=[1], norm_topk_prob=True, **experts(7, 3, 20)),
         edit=drop("num_local_experts", num_experts=7),
         contrasts=EXPERT_CONTRASTS | {"weights not divided": {"config": {"norm_topk_prob": False}}}),
    Spec("qwen3_moe_fused", "qwen3_moe",
         "Qwen3-MoE: all experts in one tensor, weights as the softmax has them, every second layer, attention_bias",
         small(num_hidden_layers=4, decoder_sparse_step=2, attention_bias=True, **experts(5, 2, 24)),
         tensors="fused_experts",
         contrasts=EXPERT_CONTRASTS | {"weights divided": {"config": {"norm_topk_prob": True}}}),
    Spec("mixtral", "mixtral", "Mixtral: block_sparse_moe with w1, w2 and w3, a sliding window",
         small(num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, sliding_window=48,
               rope_parameters=rope("default", 1e6)),
         contrasts=EXPERT_CONTRASTS | {"window ignored": {"config": {"sliding_window": None}}}),
    Spec("qwen3_next", "qwen3_next",
         "Qwen3-Next: what goes into a delta network packed by key head, a dense layer, a gated shared expert",
         hybrid(1e7, 0.25, [2, 1, 1], shared_expert_intermediate_size=24, mlp_only_layers=[2], linear_value_head_dim=12,
                **experts(6, 2, 16)), seed=1,
         contrasts=PACKED_CONTRASTS | SHARED_CONTRASTS | {
             "weights not divided": {"config": {"norm_topk_prob": False}},
             "projections read as Qwen3.5's": {"split": "in_proj_qkvz.weight"},
         }),
    Spec("qwen3_5_moe", "qwen3_5_moe",
         "Qwen3.5-MoE as on the hub: text_config beside a vision tower, fused experts, a gated shared one of another width",
         hybrid(1e7, 0.25, [2, 1, 1], shared_expert_intermediate_size=40, tie_word_embeddings=False, **experts(6, 2, 16)),
         tensors="fused_experts", contrasts=HYBRID_CONTRASTS | SHARED_CONTRASTS),
    Spec("qwen3_5_moe_text", "qwen3_5_moe_text",
         "Qwen3.5-MoE's text model alone, each expert by itself, the shared one narrower",
         hybrid(1e4, 0.5, [4, 2, 2], shared_expert_intermediate_size=8, **experts(8, 3, 16)), seed=1,
         contrasts=HYBRID_CONTRASTS | SHARED_CONTRASTS),
]


def by_name(name: str) -> Spec:
    for spec in SPECS:
        if spec.name == name:
            return spec
    raise SystemExit(f"no model '{name}'; there are: {', '.join(s.name for s in SPECS)}")
