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
    arch: str  # the model_type; see writer.CLASSES and WRAPPED
    covers: str
    config: Config
    dtype: torch.dtype = torch.bfloat16
    edit: Callable[[Config], Config] | None = None
    # "f32_norms" | "f32_decays" | "inv_freq" | "lm_head_differs" | "lm_head_same" | "fused_experts" | "mtp" | "mxfp4"
    # | "dense_mlps"
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
LLAMA4 = rope("llama3", 10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=1.0,
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


def in_text(edit: Callable[[Config], Config]) -> Callable[[Config], Config]:
    """The same edit inside text_config."""
    return lambda c: c | {"text_config": edit(c["text_config"])}


def hub_rope(theta: float, scaling: Config | None = None, *dropped: str, **more: Any) -> Callable[[Config], Config]:
    """config.json of a family with a RoPE for each type of layer, as the hub spells it."""
    return drop("rope_parameters", *dropped, rope_theta=theta, rope_scaling=scaling, **more)


def by_type(full: Config, sliding: Config) -> Config:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


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


QWEN_VISION = {"vision_config": dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                     num_position_embeddings=4, out_hidden_size=32)}
PIXELS = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8,
              patch_size=4)
# What stands beside text_config.
VISION: dict[str, Config] = {
    "qwen3_5": QWEN_VISION,
    "qwen3_5_moe": QWEN_VISION,
    "gemma3": {"vision_config": PIXELS, "mm_tokens_per_image": 4},
    "gemma4": {"vision_config": PIXELS | {"head_dim": 8, "num_key_value_heads": 2, "position_embedding_size": 8},
               "audio_config": None},
    "gemma4_unified": {"vision_config": dict(patch_size=2, pooling_kernel_size=2, mm_embed_dim=16, mm_posemb_size=4,
                                             output_proj_dims=32), "audio_config": None},
    "mistral3": {"vision_config": PIXELS | {"head_dim": 8}},
    "llama4": {"vision_config": dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
                                     image_size=2, patch_size=2, vision_output_dim=4, projector_input_dim=1,
                                     projector_output_dim=4)},
}

# Mistaken readings of any hybrid.
HYBRID_CONTRASTS: dict[str, Config] = {
    "norms not zero-centred": {"shift": {"layernorm": -1.0, "model.norm": -1.0, "q_norm": -1.0, "k_norm": -1.0}},
    "the heads' norm zero-centred": {"shift": {"linear_attn.norm": 1.0}},
    "q_proj read as all q, then all gates": {"halves": "q_proj.weight"},
    "value heads go by key heads in turns": {"turns": True},
}

# Mistaken readings of any router that corrects its choices by a bias.
CORRECTED_CONTRASTS: dict[str, Config] = {
    "no correction of choices": {"fill": {"e_score_correction_bias": 0.0}},
    "corrections in the weights too": {"router": "biased weights"},
}
GEMMA_CONTRASTS: dict[str, Config] = {
    "norms not zero-centred": {"shift": {"norm": -1.0}},
    "embedding not scaled": {"fill": {"embed_scale": 1.0}},
    "no norms after attention": {"skip": ["post_attention_layernorm"]},
    "no norms after the MLP": {"skip": ["post_feedforward_layernorm"]},
    "no windows": {"config": {"sliding_window": 512}},
    "window 17": {"config": {"sliding_window": 17}},
    "scores scaled by head_dim": {"config": {"query_pre_attn_scalar": 32}},
    "SiLU": {"config": {"hidden_activation": "silu"}},
}
GEMMA4_CONTRASTS: dict[str, Config] = {
    "norms zero-centred": {"shift": {"norm": 1.0}},
    "embedding not scaled": {"fill": {"embed_scale": 1.0}},
    "no norms after attention": {"skip": ["post_attention_layernorm"]},
    "no norms after the MLP": {"skip": ["post_feedforward_layernorm"]},
    "v not normed": {"skip": ["v_norm"]},
    "layer scalars ignored": {"fill": {"layer_scalar": 1.0}},
    "no windows": {"config": {"sliding_window": 512}},
    "window 17": {"config": {"sliding_window": 17}},
    "scores divided": {"scaling": 0.25},
}
OLMO_CONTRASTS: dict[str, Config] = {
    "q/k norm of each head": {"norm_width": 16},
    "no norms after attention": {"skip": ["post_attention_layernorm"]},
    "no norms after the MLP": {"skip": ["post_feedforward_layernorm"]},
}
MINISTRAL = rope("yarn", 1e6, factor=16.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0,
                 mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)
GPT_OSS = rope("yarn", 150000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
               truncate=False)
LONGROPE = rope("longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.05, 1.2, 1.5, 1.75, 2.0],
                long_factor=[1.1, 1.5, 3.0, 6.0, 12.5, 20.0])

PACKED_CONTRASTS = {what: HYBRID_CONTRASTS[what] for what in HYBRID_CONTRASTS if "in turns" not in what}


def latent(**more: Any) -> Config:
    """Attention through a latent, a mixture behind the first layer."""
    sizes = dict(kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=8,
                 num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1)
    return dims(32, 72, 3, 2, 2, None, 272) | sizes | more


def convolutions(layers: int, **more: Any) -> Config:
    """LFM's config: an eps large enough to be visible."""
    return dict(hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=272, norm_eps=0.02, max_position_embeddings=512, pad_token_id=0,
                bos_token_id=1, eos_token_id=2) | more


# Mistaken readings of any short convolution.
CONVOLUTION_CONTRASTS: dict[str, Config] = {
    "taps the other way round": {"flip": "conv.conv.weight"},
    "what multiplies before and behind swapped": {"thirds": "conv.in_proj.weight"},
    "eps 1e-5": {"config": {"norm_eps": 1e-5}},
}


def mamba_granite(**more: Any) -> Config:
    """Granite 4's config."""
    return dims(32, 20, 3, 4, 2, None, 272, pad_token_id=0, shared_intermediate_size=40, mamba_n_heads=4,
                mamba_d_head=16, mamba_d_state=16, mamba_expand=2, embedding_multiplier=3.0, attention_multiplier=0.3,
                residual_multiplier=0.5, logits_scaling=0.5) | more


# Mistaken readings of any Mamba-2.
MAMBA_CONTRASTS: dict[str, Config] = {
    "taps the other way round": {"flip": "conv1d.weight"},
    "no bias of the convolution": {"fill": {"conv1d.bias": 0.0}},
    "C before B": {"c_and_b": True},
    "nothing skips the state": {"fill": {".D": 0.0}},
    "no bias of dt": {"fill": {"dt_bias": 0.0}},
    "decays in another order": {"roll": "A_log"},
    "gates behind the norm": {"gated_behind": True},
}


# Mistaken readings of any latent.
LATENT_CONTRASTS: dict[str, Config] = {
    "halves rotate": {"config": {"rope_interleave": False}},
    "the latent's norm ignored": {"ones": ["kv_a_layernorm"]},
    "no shared expert": {"zero": "shared_experts.down_proj.weight"},
}


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
    Spec("smollm3", "smollm3", "SmolLM3: layer 3 of 5 without RoPE by the default interval of 4, tied",
         small(num_hidden_layers=5, tie_word_embeddings=True, rope_parameters=rope("default", 5e6), pad_token_id=0),
         edit=drop("no_rope_layers", "no_rope_layer_interval", then=old_spelling()), seed=4,
         contrasts={"RoPE everywhere": {"config": {"no_rope_layers": [1] * 5}},
                    "list read the other way round": {"config": {"no_rope_layers": [0, 0, 0, 1, 0]}},
                    "every third layer without RoPE": {"config": {"no_rope_layer_interval": 3}}}),
    Spec("smollm3_swa", "smollm3",
         "SmolLM3: no_rope_layers in the file, layers without RoPE slide as layer_types is missing; biases, untied",
         small(num_hidden_layers=3, tie_word_embeddings=False, no_rope_layers=[0, 1, 0], use_sliding_window=True,
               sliding_window=16, attention_bias=True, mlp_bias=True, rope_parameters=rope("default", 1e5),
               pad_token_id=0),
         edit=drop("layer_types"),
         contrasts={"no windows": {"config": {"use_sliding_window": False}},
                    "layers with RoPE slide": {"config": {"layer_types": [
                        "full_attention", "sliding_attention", "full_attention"]}},
                    "RoPE everywhere": {"config": {"no_rope_layers": [1] * 3, "layer_types": [
                        "sliding_attention", "full_attention", "sliding_attention"]}},
                    "bias dropped": {"zero": ".bias"}}),
    Spec("seed_oss", "seed_oss", "Seed-OSS: bias on q, k and v by default and none on o, heads*head_dim != hidden",
         small(pad_token_id=0, rope_parameters=rope("default", 1e7)),
         edit=drop("attention_bias", "attention_out_bias", "mlp_bias", then=old_spelling()),
         contrasts={"bias dropped": {"zero": ".bias"}, "theta 1e4": {"config": {"rope_theta": 1e4}}}),
    Spec("seed_oss_out_bias", "seed_oss", "Seed-OSS: no bias on q, k and v, attention_out_bias, mlp_bias, tied",
         small(pad_token_id=0, attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
         contrasts={"o bias dropped": {"zero": "o_proj.bias"},
                    "mlp bias dropped": {"config": {"mlp_bias": False}}}),
    Spec("granite", "granite", "Granite 3 and 4.1: four multipliers, tied",
         small(tie_word_embeddings=True, embedding_multiplier=0.2, attention_multiplier=0.06, residual_multiplier=0.4,
               logits_scaling=0.4),
         contrasts={"embedding_multiplier ignored": {"config": {"embedding_multiplier": 1.0}},
                    "attention_multiplier ignored": {"config": {"attention_multiplier": 32**-0.5}},
                    "attention_multiplier times head_dim^-0.5": {"config": {"attention_multiplier": 0.06 * 32**-0.5}},
                    "residual_multiplier ignored": {"config": {"residual_multiplier": 1.0}},
                    "logits_scaling ignored": {"config": {"logits_scaling": 1.0}},
                    "logits multiplied": {"config": {"logits_scaling": 2.5}}}),
    Spec("granitemoe", "granitemoe",
         "Granite 3 MoE: fused experts under the hub's names, softmax over the chosen, multipliers, untied",
         small(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=0.5,
               intermediate_size=20, num_local_experts=6, num_experts_per_tok=3),
         contrasts=EXPERT_CONTRASTS | {
             "experts in another order": {"roll": "router.weight"},
             "softmax over all": {"router": "weights of all"},
             "attention_multiplier ignored": {"config": {"attention_multiplier": 32**-0.5}},
             "residual_multiplier ignored": {"config": {"residual_multiplier": 1.0}},
             "logits_scaling ignored": {"config": {"logits_scaling": 1.0}}}),
    Spec("granitemoehybrid", "granitemoehybrid",
         "Granite 4 H Micro as on the hub: Mamba-2 of two groups, dt within limits, no experts, no RoPE, tied",
         mamba_granite(num_local_experts=0, mamba_n_groups=2, mamba_proj_bias=True, tie_word_embeddings=True,
                       layer_types=["linear_attention", "full_attention", "linear_attention"],
                       time_step_limit=[0.3, 2.0]),
         seed=1,
         edit=drop("num_experts_per_tok", then=old_spelling(), layer_types=["mamba", "attention", "mamba"], position_embedding_type="nope",
                   time_step_limit=[0.3, float("inf")]),
         contrasts=MAMBA_CONTRASTS | {
             "norm over all groups": {"group_size": 64},
             "dt of any size": {"config": {"time_step_limit": [0.0, 1e9]}},
             "RoPE": {"config": {"position_embedding_type": "rope"}},
             "gates read as ups": {"swap": "input_linear.weight"},
             "residual_multiplier ignored": {"config": {"residual_multiplier": 1.0}}}),
    Spec("granitemoehybrid_moe", "granitemoehybrid",
         "Granite 4 H Small: a mixture beside an MLP, Mamba-2 of one group, infinity by its name",
         mamba_granite(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24, intermediate_size=12,
                       layer_types=["linear_attention", "full_attention", "linear_attention"],
                       position_embedding_type="rope", rope_parameters=rope("default", 1e3)),
         seed=1,
         contrasts=MAMBA_CONTRASTS | {
             "no RoPE": {"config": {"position_embedding_type": None}},
             "one expert a token": {"config": {"num_experts_per_tok": 1}},
             "experts in another order": {"roll": "router.weight"},
             "no MLP beside them": {"zero": "output_linear.weight"},
             "residual_multiplier ignored": {"config": {"residual_multiplier": 1.0}}}),
    Spec("nemotron_h", "nemotron_h",
         "Nemotron-H as on the hub: layers of one part each by a pattern, squared ReLU without gates, no RoPE",
         drop("rms_norm_eps", "num_hidden_layers")(dims(
             32, 56, 5, 4, 2, 16, 272, pad_token_id=0, layer_norm_epsilon=0.02, time_step_min=0.05,
             mamba_num_heads=4, mamba_head_dim=12, ssm_state_size=16, n_groups=2, chunk_size=64,
             layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"])),
         edit=drop("layers_block_type", "layer_types", "mtp_layers_block_type", "moe_intermediate_size",
                   "moe_latent_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap", "n_group",
                   "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "topk_group", "norm_topk_prob",
                   num_hidden_layers=5, hybrid_override_pattern="M-*M-", time_step_limit=[0.0, float("inf")]),
         contrasts=MAMBA_CONTRASTS | {
             "norm over all groups": {"group_size": 48},
             "dt of any size": {"config": {"time_step_min": 0.0}},
             "eps 1e-5": {"config": {"layer_norm_epsilon": 1e-5}},
             "ReLU not squared": {"config": {"mlp_hidden_act": "relu"}},
             "an MLP left out": {"config": {"hybrid_override_pattern": "M-*M"}}}),
    Spec("nemotron_h_moe", "nemotron_h",
         "Nemotron 3 Nano: mixtures of experts without gates, corrections, a shared expert of its own width",
         drop("rms_norm_eps", "num_hidden_layers")(dims(
             32, 56, 4, 4, 2, 8, 272, pad_token_id=0, layer_norm_epsilon=1e-5, use_bias=True, mamba_num_heads=4,
             mamba_head_dim=8, ssm_state_size=8, n_groups=1, n_routed_experts=6, num_experts_per_tok=2,
             moe_intermediate_size=12, moe_shared_expert_intermediate_size=24, routed_scaling_factor=1.5,
             layers_block_type=["linear_attention", "moe", "full_attention", "moe"])),
         contrasts=MAMBA_CONTRASTS | {
             "one expert a token": {"config": {"num_experts_per_tok": 1}},
             "experts in another order": {"roll": "gate.weight"},
             "no correction of choices": {"fill": {"e_score_correction_bias": 0.0}},
             "no shared expert": {"zero": "shared_experts.down_proj.weight"},
             "weights not scaled": {"config": {"routed_scaling_factor": 1.0}},
             "ReLU not squared": {"config": {"mlp_hidden_act": "relu"}}}),
    Spec("kimi_linear", "kimi_linear",
         "Kimi-Linear as on the hub: KDA, a layer of attention through a latent without RoPE, dense layers first, groups",
         dims(16, 24, 3, 2, 2, None, 272, pad_token_id=0, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=8, linear_head_dim=8, linear_num_heads=2, num_local_experts=6, num_experts_per_tok=2,
              moe_intermediate_size=8, n_group=2, topk_group=1, routed_scaling_factor=1.5,
              layer_types=["linear_attention", "full_attention", "linear_attention"],
              mlp_layer_types=["dense", "dense", "sparse"]),
         edit=drop("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim",
                   linear_attn_config={"full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 8, "num_heads": 2,
                                       "short_conv_kernel_size": 4},
                   first_k_dense_replace=2, moe_layer_freq=1, mla_use_nope=True, moe_router_activation_func="sigmoid"),
         tensors="dense_mlps", seed=1, contrasts=CORRECTED_CONTRASTS | {
             "taps the other way round": {"flip": "conv1d.weight"},
             "keys' taps before queries'": {"thirds": "conv1d.weight"},
             "decays by their bias alone": {"zero": "f_b_proj.weight"},
             "decays of other channels": {"roll": "dt_bias"},
             "no gates": {"zero": "g_b_proj.weight"},
             "gates by silu": {"gate": "silu"},
             "the latent's norm ignored": {"ones": ["kv_a_layernorm"]},
             "one expert a token": {"config": {"num_experts_per_token": 1}},
             "one group": {"config": {"num_expert_group": 1}},
             "groups by their best expert": {"router": "groups by best"},
             "weights not divided": {"config": {"moe_renormalize": False}},
             "weights not scaled": {"config": {"routed_scaling_factor": 1.0}},
             "no shared expert": {"zero": "shared_experts.down_proj.weight"}}),
    Spec("phi3", "phi3", "Phi-3 mini 4k and Phi-4: qkv_proj and gate_up_proj, every layer slides, window 16",
         dims(32, 72, 2, 4, 2, 8, 272, pad_token_id=0, sliding_window=16),
         edit=drop("head_dim", then=old_spelling()),
         contrasts={"gates read as ups": {"swap": "gate_up_proj.weight"},
                    "q, k and v by key head": {"grouped": "qkv_proj.weight"},
                    "no window": {"config": {"sliding_window": None}},
                    "window 17": {"config": {"sliding_window": 17}}}),
    Spec("phi3_longrope_short", "phi3",
         "Phi-4 mini: three quarters rotated, longrope's short factors, for all stays within 256 of 1024; tied",
         dims(32, 72, 2, 2, 1, 16, 272, pad_token_id=0, tie_word_embeddings=True, rope_parameters=LONGROPE,
              original_max_position_embeddings=256) | {"max_position_embeddings": 1024},
         edit=old_spelling({k: LONGROPE[k] for k in ("short_factor", "long_factor")} | {"type": "longrope"},
                           partial_rotary_factor=0.75),
         contrasts={"no scaling": {"config": {"rope_scaling": None}},
                    "long factors": {"config": {"rope_scaling": LONGROPE | {
                        "short_factor": LONGROPE["long_factor"]}}},
                    "cos and sin not scaled": {"config": {"rope_scaling": LONGROPE | {"attention_factor": 1.0}}}}),
    Spec("ministral3", "ministral3", "Ministral 3: yarn with equal mscales; queries grow past 32 tokens",
         small(pad_token_id=0, rope_parameters=MINISTRAL, num_key_value_heads=2),
         contrasts={"queries not scaled": {"config": {"rope_parameters": MINISTRAL | {"llama_4_scaling_beta": 0.0}}},
                    "yarn ignored": {"config": {"rope_parameters": MINISTRAL | {"rope_type": "default"}}},
                    "cos and sin scaled": {"config": {"rope_parameters": MINISTRAL | {"mscale": 0.0}}}}),
    Spec("mistral3", "mistral3",
         "Ministral 3 as on the hub: text_config beside a vision tower, language_model.*, untied, window 24",
         small(model_type="ministral3", pad_token_id=0, rope_parameters=MINISTRAL, sliding_window=24,
               tie_word_embeddings=False),
         contrasts={"queries not scaled": {"config": {"rope_parameters": MINISTRAL | {"llama_4_scaling_beta": 0.0}}},
                    "no window": {"config": {"sliding_window": None}},
                    "tied": {"tie": True}}),
    Spec("olmo2", "olmo2", "Olmo 2: norms after attention and MLP only, q/k norm over all heads, as on the hub",
         dims(32, 72, 2, 4, 2, 16, 272, pad_token_id=0, rope_parameters=rope("default", 5e5)),
         edit=old_spelling(),
         contrasts=OLMO_CONTRASTS | {"theta 1e4": {"config": {"rope_theta": 1e4}}}),
    Spec("olmo3", "olmo3", "Olmo 3 as on the hub: window 16 but every fourth layer, yarn on full layers alone",
         dims(32, 56, 4, 4, 2, 16, 272, pad_token_id=0, sliding_window=16,
              **by_type(rope("yarn", 5e5, factor=8.0, original_max_position_embeddings=64), rope("default", 5e5))),
         edit=hub_rope(5e5, {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
                       "layer_types"),
         contrasts=OLMO_CONTRASTS | {
             "no windows": {"config": {"sliding_window": 512}},
             "window 17": {"config": {"sliding_window": 17}},
             "no yarn": {"config": {"rope_scaling": None}},
             "yarn everywhere": {"config": by_type(*[rope(
                 "yarn", 5e5, factor=8.0, original_max_position_embeddings=64)] * 2)}}),
    Spec("olmo3_types", "olmo3", "Olmo 3 as transformers 5 saves it: layer_types and a RoPE for each; MHA, biases",
         dims(32, 56, 3, 2, 2, 16, 272, pad_token_id=0, sliding_window=24, attention_bias=True,
              layer_types=["full_attention", "sliding_attention", "full_attention"],
              **by_type(rope("linear", 5e5, factor=4.0), rope("default", 1e4))),
         contrasts=OLMO_CONTRASTS | {
             "full layers' RoPE everywhere": {"config": by_type(*[rope("linear", 5e5, factor=4.0)] * 2)},
             "sliding layers' RoPE everywhere": {"config": by_type(*[rope("default", 1e4)] * 2)},
             "bias dropped": {"zero": ".bias"}}),
    Spec("gemma2", "gemma2", "Gemma 2: soft-caps of scores and logits, first of three layers slides by default, tied",
         small(num_hidden_layers=3, tie_word_embeddings=True, query_pre_attn_scalar=128, sliding_window=16,
               attn_logit_softcapping=2.0, final_logit_softcapping=5.0, pad_token_id=0),
         edit=drop("layer_types", "tie_word_embeddings", then=old_spelling()), seed=4,
         contrasts=GEMMA_CONTRASTS | {
             "scores not capped": {"config": {"attn_logit_softcapping": 1e9}},
             "logits not capped": {"config": {"final_logit_softcapping": 1e9}},
             "other layers slide": {"config": {"layer_types": [
                 "full_attention", "sliding_attention", "full_attention"]}}}),
    Spec("gemma3_text", "gemma3_text",
         "Gemma 3's text model alone, as transformers 5 saves it: q/k norm, layer_types and a RoPE for each, tied",
         small(num_hidden_layers=4, tie_word_embeddings=True, query_pre_attn_scalar=64, sliding_window=16,
               layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
               pad_token_id=0, **by_type(rope("linear", 1e6, factor=8.0), rope("default", 1e4))), seed=2,
         contrasts=GEMMA_CONTRASTS | {
             "full layers' RoPE everywhere": {"config": by_type(*[rope("linear", 1e6, factor=8.0)] * 2)},
             "sliding layers' RoPE everywhere": {"config": by_type(*[rope("default", 1e4)] * 2)},
             "RoPE not scaled": {"config": by_type(rope("default", 1e6), rope("default", 1e4))}}),
    Spec("gemma3", "gemma3",
         "Gemma 3 as on the hub: text_config beside a vision tower, language_model.*, sliding_window_pattern, thetas",
         small(num_hidden_layers=3, tie_word_embeddings=True, query_pre_attn_scalar=64, sliding_window=16,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"], pad_token_id=0,
               **by_type(rope("linear", 1e6, factor=8.0), rope("default", 2e4))), seed=1,
         edit=drop("tie_word_embeddings", then=in_text(hub_rope(
             1e6, {"rope_type": "linear", "factor": 8.0}, "layer_types", "tie_word_embeddings", "attention_bias",
             "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "_sliding_window_pattern",
             "use_bidirectional_attention", rope_local_base_freq=2e4, sliding_window_pattern=2))),
         contrasts=GEMMA_CONTRASTS | {
             "pattern 6": {"config": {"sliding_window_pattern": 6}},
             "local theta 1e4": {"config": {"rope_local_base_freq": 1e4}},
             "RoPE not scaled": {"config": {"rope_scaling": None}}}),
    Spec("gemma4_text", "gemma4_text",
         "Gemma 4 E2B's text model as on the hub: inputs of layers, three layers with others' K and V, twice as wide",
         dims(32, 40, 6, 4, 2, 16, 272, tie_word_embeddings=True, pad_token_id=0, sliding_window=16,
              layer_types=["sliding_attention", "full_attention"] * 3, global_head_dim=32, num_kv_shared_layers=3,
              use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=272,
              final_logit_softcapping=10.0,
              **by_type(rope("proportional", 1e6, partial_rotary_factor=0.25), rope("default", 1e4))),
         edit=drop("per_layer_config", global_head_dim=32),
         contrasts=GEMMA4_CONTRASTS | {
             "logits not capped": {"config": {"final_logit_softcapping": 1e9}},
             "table of tokens ignored": {"zero": "embed_tokens_per_layer.weight"},
             "inputs of layers in another order": {"roll": "per_layer_model_projection.weight"},
             "inputs' norm ignored": {"ones": ["per_layer_projection_norm"]},
             "no norm behind a layer's input": {"skip": ["post_per_layer_input_norm"]},
             "the whole head turns": {"config": by_type(rope("default", 1e6), rope("default", 1e4))},
             "angles of a quarter": {"config": by_type(
                 rope("proportional", 1e6**4, partial_rotary_factor=0.25), rope("default", 1e4))}}),
    Spec("gemma4", "gemma4",
         "Gemma 4 26B as transformers 5 saves it: experts beside an MLP, v is k's, wide heads, a vision tower beside",
         dims(32, 24, 4, 4, 2, 16, 272, tie_word_embeddings=True, pad_token_id=0, sliding_window=24,
              layer_types=["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
              global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
              enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=12,
              **by_type(rope("proportional", 1e6, partial_rotary_factor=0.5, factor=2.0), rope("default", 1e4))),
         contrasts=GEMMA4_CONTRASTS | {
             "gates read as ups": {"swap": "gate_up_proj"},
             "experts in another order": {"roll": "router.proj.weight"},
             "one expert a token": {"config": {"top_k_experts": 1}},
             "experts not scaled": {"fill": {"per_expert_scale": 1.0}},
             "router's scale ignored": {"fill": {"router.scale": 1.0}},
             "no norms after the experts": {"skip": ["post_feedforward_layernorm_2"]},
             "no norms after the dense MLP": {"skip": ["post_feedforward_layernorm_1"]},
             "angles not divided": {"config": by_type(
                 rope("proportional", 1e6, partial_rotary_factor=0.5), rope("default", 1e4))}}),
    Spec("gemma4_unified_text", "gemma4_unified_text",
         "Gemma 4 12B's text model alone: v is k's, wide heads, no inputs of layers, full layers by default the last",
         dims(32, 40, 2, 4, 2, 16, 272, tie_word_embeddings=True, pad_token_id=0, sliding_window=16, global_head_dim=24,
              num_global_key_value_heads=2, attention_k_eq_v=True,
              **by_type(rope("proportional", 1e6, partial_rotary_factor=0.25), rope("default", 1e4))),
         edit=drop("per_layer_config", "layer_types", global_head_dim=24, num_global_key_value_heads=2),
         contrasts=GEMMA4_CONTRASTS),
    Spec("gemma4_unified", "gemma4_unified", "Gemma 4 12B: the same beside what sees, v_proj of its own, three layers",
         dims(32, 40, 3, 4, 2, 16, 272, tie_word_embeddings=True, pad_token_id=0, sliding_window=24,
              layer_types=["sliding_attention", "full_attention", "full_attention"], global_head_dim=32,
              num_kv_shared_layers=1, use_double_wide_mlp=True,
              **by_type(rope("proportional", 1e6, partial_rotary_factor=0.25), rope("default", 1e4))),
         contrasts=GEMMA4_CONTRASTS),
    Spec("glm4", "glm4",
         "GLM-4 0414: neighbours rotate together in half of each head, norms before and after, bias on q, k and v",
         small(pad_token_id=0, num_key_value_heads=2), edit=drop("attention_bias", then=old_spelling()),
         contrasts={"halves rotate together": {"unpaired": 16},
                    "whole heads rotated": {"config": {"partial_rotary_factor": 1.0}},
                    "no norms after attention": {"skip": ["post_self_attn_layernorm"]},
                    "no norms after the MLP": {"skip": ["post_mlp_layernorm"]},
                    "gates read as ups": {"swap": "gate_up_proj.weight"},
                    "bias dropped": {"zero": ".bias"}}),
    Spec("glm4_moe", "glm4_moe",
         "GLM-4.5 to 4.7 as on the hub: a dense layer first, biased choices, a shared expert, q/k norm, one MTP layer",
         small(num_hidden_layers=3, pad_token_id=0, head_dim=32, attention_bias=True, use_qk_norm=True,
               n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=16, routed_scaling_factor=1.8),
         tensors="mtp", edit=old_spelling(), seed=4,
         contrasts=EXPERT_CONTRASTS | CORRECTED_CONTRASTS | {
             "weights not divided": {"config": {"norm_topk_prob": False}},
             "weights not scaled": {"config": {"routed_scaling_factor": 1.0}},
             "no shared expert": {"zero": "shared_experts.down_proj.weight"},
             "q/k norm weights ignored": {"ones": ["q_norm", "k_norm"]},
             "whole heads rotated": {"config": {"partial_rotary_factor": 1.0}},
             "bias dropped": {"zero": "proj.bias"}}),
    Spec("glm4_moe_groups", "glm4_moe",
         "GLM-4.5: experts in one tensor, two of four groups by their two best, weights not divided, shared experts",
         small(num_hidden_layers=3, pad_token_id=0, n_routed_experts=12, n_group=4, topk_group=2,
               num_experts_per_tok=3, moe_intermediate_size=12, routed_scaling_factor=0.6, norm_topk_prob=False,
               n_shared_experts=2, rope_parameters=rope("default", 1e6, partial_rotary_factor=0.25)),
         tensors="fused_experts", seed=4,
         contrasts=EXPERT_CONTRASTS | CORRECTED_CONTRASTS | {
             "no groups": {"config": {"n_group": 1, "topk_group": 1}},
             "groups by their best": {"router": "groups by best"},
             "weights divided": {"config": {"norm_topk_prob": True}},
             "weights not scaled": {"config": {"routed_scaling_factor": 1.0}},
             "half of each head rotated": {"config": {"rope_parameters": rope(
                 "default", 1e6, partial_rotary_factor=0.5)}}}),
    Spec("glm4_moe_lite", "glm4_moe_lite",
         "GLM-4.7-Flash: a latent for keys and values and one for queries, neighbours rotate, values of another width",
         latent(q_lora_rank=12, routed_scaling_factor=1.8, n_shared_experts=1, rms_norm_eps=1e-3,
                rope_parameters=rope("default", 1e6)),
         contrasts=LATENT_CONTRASTS | {"correction ignored": {"fill": {"e_score_correction_bias": 0.0}},
                                       "queries' norm ignored": {"ones": ["q_a_layernorm"]},
                                       "routed sum not scaled": {"config": {"routed_scaling_factor": 1.0}}}),
    Spec("deepseek_v3", "deepseek_v3",
         "Moonlight: DeepSeek-V3 without a latent of queries; yarn with mscale_all_dim, groups, dense layers first",
         latent(q_lora_rank=None, n_group=2, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=2.0,
                rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
         contrasts=LATENT_CONTRASTS | {"scores not scaled": {"config": {"rope_parameters": YARN | {
             "mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": 1.0}}},
                                       "one group": {"config": {"n_group": 1}}}),
    Spec("deepseek_v2", "deepseek_v2",
         "DeepSeek-V2-Lite: softmax scores that are not divided, two shared experts, attention_bias",
         latent(q_lora_rank=12, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.5,
                attention_bias=True, topk_method="greedy", norm_topk_prob=False),
         contrasts={k: v for k, v in LATENT_CONTRASTS.items() if k != "halves rotate"}
         | {"bias dropped": {"zero": "kv_a_proj_with_mqa.bias"}}),
    Spec("mistral4", "mistral4", "Mistral Small 4: softmax scores in groups, whole queries that grow past 32 tokens",
         latent(q_lora_rank=12, first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=1.5,
                rope_parameters=MINISTRAL),
         contrasts=LATENT_CONTRASTS | {
             "queries not scaled": {"config": {"rope_parameters": MINISTRAL | {"llama_4_scaling_beta": 0.0}}}}),
    Spec("minimax_m2", "minimax_m2",
         "MiniMax-M2 as on the hub: block_sparse_moe with w1, w2 and w3, q/k norm over all heads, rotary_dim",
         dims(32, 16, 2, 4, 2, 16, 272, pad_token_id=0, num_local_experts=6, num_experts_per_tok=2,
              rope_parameters=rope("default", 5e6, partial_rotary_factor=0.5)),
         edit=old_spelling(rotary_dim=8), seed=4,
         contrasts=EXPERT_CONTRASTS | CORRECTED_CONTRASTS | {
             "q/k norm of each head": {"norm_width": 16},
             "whole heads rotated": {"config": {"rotary_dim": 16}}}),
    Spec("hy_v3", "hy_v3",
         "Hunyuan 3 as on the hub: dense first, mlp.router.gate, mlp.expert_bias, mlp.shared_mlp, q/k norm",
         small(num_hidden_layers=3, pad_token_id=0, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=16),
         edit=drop("mlp_layer_types"),
         contrasts=EXPERT_CONTRASTS | CORRECTED_CONTRASTS | {
             "weights not scaled": {"config": {"router_scaling_factor": 1.0}},
             "no shared expert": {"zero": "shared_experts.down_proj.weight"},
             "q/k norm weights ignored": {"ones": ["q_norm", "k_norm"]},
             "theta 1e4": default_rope()}),
    Spec("llama4_text", "llama4_text",
         "Llama 4: chunks of 31 positions with RoPE, a layer without whose queries grow, norms without weights, every other "
         "layer a mixture that weighs inputs, llama3 RoPE whose two borders are one",
         dims(24, 8, 4, 2, 1, 8, 64, pad_token_id=0, intermediate_size_mlp=16, num_local_experts=3,
              attention_chunk_size=31, no_rope_layers=[1, 0, 1, 1], interleave_moe_layer_step=2, floor_scale=16,
              attn_scale=0.4, rope_parameters=LLAMA4),
         edit=drop("layer_types", "moe_layers"), seed=5,
         contrasts={"two experts a token": {"config": {"num_experts_per_tok": 2}},
                    "experts in another order": {"roll": "router.weight"},
                    "no shared expert": {"zero": "shared_expert.down_proj.weight"},
                    "gates read as ups": {"crossed": "gate_up_proj"},
                    "weights of what experts give": {"outputs": True},
                    "no chunks": {"config": {"attention_chunk_size": 512}},
                    "chunk 32": {"config": {"attention_chunk_size": 32}},
                    "chunks everywhere": {"config": {"layer_types": ["chunked_attention"] * 4}},
                    "RoPE everywhere": {"config": {"no_rope_layers": [1] * 4, "layer_types": [
                        "chunked_attention", "full_attention", "chunked_attention", "chunked_attention"]}},
                    "queries not scaled": {"config": {"attn_temperature_tuning": False}},
                    "queries grow later": {"config": {"floor_scale": 32}},
                    "heads not normed": {"config": {"use_qk_norm": False}},
                    "halves rotated": {"unpaired": 8},
                    "no llama3 scaling": {"config": {"rope_parameters": LLAMA4 | {"rope_type": "default"}}}}),
    Spec("llama4", "llama4",
         "Llama 4 beside a vision tower: text_config, language_model.*, all layers in chunks with RoPE, no norms of heads, "
         "queries that do not grow, two experts a token in the layer that moe_layers names",
         dims(16, 8, 2, 2, 1, 8, 64, pad_token_id=0, intermediate_size_mlp=16, num_local_experts=3, num_experts_per_tok=2,
              moe_layers=[1], attention_chunk_size=24, no_rope_layers=[1, 1], use_qk_norm=False,
              attn_temperature_tuning=False, tie_word_embeddings=False, rope_parameters=rope("default", 5e5)),
         edit=in_text(hub_rope(5e5, None, "layer_types")),
         contrasts={"one expert a token": {"config": {"num_experts_per_tok": 1}},
                    "experts in another order": {"roll": "router.weight"},
                    "weights of what experts give": {"outputs": True},
                    "chunk 25": {"config": {"attention_chunk_size": 25}},
                    "heads normed": {"config": {"use_qk_norm": True}},
                    "a layer without RoPE": {"config": {"no_rope_layers": [1, 0]}},
                    "halves rotated": {"unpaired": 8}}),
    Spec("gpt_oss", "gpt_oss",
         "gpt-oss: sinks, windows in turns by default, yarn not truncated, biases, clamped SwiGLU, softmax of chosen",
         small(num_hidden_layers=3, intermediate_size=24, pad_token_id=0, sliding_window=16, num_local_experts=5,
               num_experts_per_tok=2, swiglu_limit=1.5, rope_parameters=GPT_OSS),
         edit=drop("layer_types"), seed=2,
         contrasts={"one expert a token": {"config": {"num_experts_per_tok": 1}},
                    "experts in another order": {"roll": "router.weight"},
                    "softmax over all": {"router": "weights of all"},
                    "router's bias ignored": {"fill": {"router.bias": 0.0}},
                    "no sinks": {"fill": {"sinks": -1e9}},
                    "sinks of 0": {"fill": {"sinks": 0.0}},
                    "no windows": {"config": {"sliding_window": 512}},
                    "window 17": {"config": {"sliding_window": 17}},
                    "other layers slide": {"config": {"layer_types": [
                        "full_attention", "sliding_attention", "full_attention"]}},
                    "no clamps": {"config": {"swiglu_limit": 1e9}},
                    "alpha 1": {"config": {"swiglu_alpha": 1.0}},
                    "up without its 1": {"odd": ("gate_up_proj_bias", -1.0)},
                    "all gates, then all ups": {"stacked": "gate_up_proj"},
                    "experts' bias dropped": {"zero": "proj_bias"},
                    "o bias dropped": {"zero": "o_proj.bias"},
                    "yarn truncated": {"config": {"rope_parameters": GPT_OSS | {"truncate": True}}},
                    "cos and sin not scaled": {"config": {"rope_parameters": GPT_OSS | {"attention_factor": 1.0}}}}),
    Spec("gpt_oss_mxfp4", "gpt_oss", "gpt-oss as on the hub: experts in MXFP4, as blocks and scales; layer_types",
         small(num_hidden_layers=2, intermediate_size=64, pad_token_id=0, sliding_window=16, num_local_experts=4,
               num_experts_per_tok=2, layer_types=["full_attention", "sliding_attention"], rope_parameters=GPT_OSS),
         tensors="mxfp4",
         contrasts={"halves of bytes the other way round": {"neighbours": "_proj"},
                    "all gates, then all ups": {"stacked": "gate_up_proj"},
                    "no sinks": {"fill": {"sinks": -1e9}}}),
    Spec("lfm2", "lfm2",
         "LFM2 as on the hub: short convolutions by full_attn_idxs, block_ff_dim adjusted to 80, tie_embedding",
         convolutions(3, intermediate_size=96, block_multiple_of=16, block_ffn_dim_multiplier=1.1,
                      layer_types=["conv", "full_attention", "conv"]),
         edit=drop("layer_types", "intermediate_size", "tie_word_embeddings", then=old_spelling(),
                   full_attn_idxs=[1], block_ff_dim=96, tie_embedding=True),
         contrasts=CONVOLUTION_CONTRASTS | {
             "q/k norm weights ignored": {"ones": ["q_layernorm", "k_layernorm"]},
             "theta 1e4": {"config": {"rope_theta": 1e4}}}),
    Spec("lfm2_moe", "lfm2_moe",
         "LFM2-MoE: feed_forward.experts with w1, w2 and w3, expert_bias, a dense layer first, biases of convolutions",
         convolutions(3, conv_bias=True, num_dense_layers=1, routed_scaling_factor=1.5,
                      layer_types=["conv", "full_attention", "conv"]) | experts(5, 2, 12),
         contrasts=CONVOLUTION_CONTRASTS | {
             "bias of convolutions dropped": {"config": {"conv_bias": False}},
             "one expert a token": {"config": {"num_experts_per_tok": 1}},
             "gates read as ups": {"swap": "gate_up_proj"},
             "experts in another order": {"roll": "feed_forward.gate.weight"},
             "no correction of choices": {"fill": {"expert_bias": 0.0}},
             "corrections in the weights too": {"router": "biased weights"},
             "weights not divided": {"config": {"norm_topk_prob": False}},
             "weights not scaled": {"config": {"routed_scaling_factor": 1.0}}}),
    Spec("lfm3", "lfm3",
         "LFM3: seven taps, norms behind parts, gates of heads, windows with their own RoPE, half of the pairs rotate",
         convolutions(4, head_dim=16, intermediate_size=32, sliding_window=16,
                      layer_types=["conv", "sliding_attention", "full_attention", "conv"],
                      **by_type(rope("proportional", 1e3, partial_rotary_factor=0.5), rope("default", 100.0))),
         contrasts=CONVOLUTION_CONTRASTS | {
             "no norms behind mixers": {"skip": ["post_operator_norm"]},
             "no norms behind MLPs": {"skip": ["post_ffn_norm"]},
             "no gates": {"config": {"use_attention_gate": False}},
             "gates in another order": {"roll": "g_proj.weight"},
             "no windows": {"config": {"sliding_window": 512}},
             "window 17": {"config": {"sliding_window": 17}},
             "all pairs rotate": {"config": by_type(rope("default", 1e3), rope("default", 100.0))},
             "a quarter of the pairs rotates": {"config": by_type(
                 rope("proportional", 1e3, partial_rotary_factor=0.25), rope("default", 100.0))},
             "one RoPE": {"config": by_type(*[rope("proportional", 1e3, partial_rotary_factor=0.5)] * 2)},
             "q/k norm weights ignored": {"ones": ["q_norm", "k_norm"]}}),
    Spec("ernie4_5", "ernie4_5", "ERNIE 4.5: neighbours rotate together, one flag for all biases, tied by default",
         small(pad_token_id=0, tie_word_embeddings=True, use_bias=True, rope_parameters=rope("default", 5e5)),
         edit=drop("tie_word_embeddings", then=old_spelling()),
         contrasts={"halves rotate together": {"unpaired": 32}, "bias dropped": {"zero": ".bias"}}),
    Spec("exaone4", "exaone4",
         "EXAONE 4: norms after attention and MLP only, q/k norm by head, every fourth layer full and without RoPE",
         small(num_hidden_layers=4, pad_token_id=0, sliding_window=16, rope_parameters=rope("default", 1e6)),
         edit=drop("layer_types", then=old_spelling()),
         contrasts={"no windows": {"config": {"sliding_window": 512}},
                    "window 17": {"config": {"sliding_window": 17}},
                    "RoPE everywhere": {"config": {"sliding_window": None, "layer_types": ["full_attention"] * 4}},
                    "q/k norm weights ignored": {"ones": ["q_norm", "k_norm"]},
                    "no norms after attention": {"skip": ["post_attention_layernorm"]},
                    "no norms after the MLP": {"skip": ["post_feedforward_layernorm"]}}),
]


def by_name(name: str) -> Spec:
    for spec in SPECS:
        if spec.name == name:
            return spec
    raise SystemExit(f"no model '{name}'; there are: {', '.join(s.name for s in SPECS)}")
