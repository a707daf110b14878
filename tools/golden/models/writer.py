"""Builds a model folder and writes its goldens. The format is described in ../README.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

import init
import reference as ref
from specs import VISION, Spec
from tokenizer import write_tokenizer

LENGTHS = [1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130]
POSITIONS = [n - 1 for n in LENGTHS]
HIDDEN_POSITIONS = [32, 129]
GREEDY_PROMPT = 33
GREEDY_STEPS = 64
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "mixtral": "Mixtral",
           "qwen3_moe": "Qwen3Moe", "qwen3_next": "Qwen3Next", "smollm3": "SmolLM3", "seed_oss": "SeedOss",
           "granite": "Granite", "granitemoe": "GraniteMoe", "phi3": "Phi3", "ministral3": "Ministral3",
           "olmo2": "Olmo2", "olmo3": "Olmo3", "gemma2": "Gemma2", "glm4": "Glm4", "glm4_moe": "Glm4Moe",
           "minimax_m2": "MiniMaxM2", "hy_v3": "HYV3", "gpt_oss": "GptOss", "ernie4_5": "Ernie4_5",
           "exaone4": "Exaone4", "glm4_moe_lite": "Glm4MoeLite", "deepseek_v3": "DeepseekV3",
           "deepseek_v2": "DeepseekV2", "mistral4": "Mistral4", "lfm2": "Lfm2", "lfm2_moe": "Lfm2Moe", "lfm3": "Lfm3",
           "granitemoehybrid": "GraniteMoeHybrid", "nemotron_h": "NemotronH",
           "kimi_linear": "KimiLinear"}
# As a whole, and with "_text" behind the text model.
WRAPPED = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe", "gemma3": "Gemma3", "gemma4": "Gemma4", "gemma4_unified": "Gemma4Unified",
           "mistral3": "Mistral3", "llama4": "Llama4"}
F32 = {"f32_norms": ("norm",), "f32_decays": ("A_log", "linear_attn.norm")}


def short(x: float) -> float:
    return float(f"{x:.6g}")


def write_json(path: Path, value: Any) -> None:
    """Indented, but lists of plain values on one line."""
    text = json.dumps(value, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text)
    path.write_text(text + "\n")


def edit_json(path: Path, edit: Any) -> None:
    write_json(path, edit(json.loads(path.read_text())))


def salted(spec: Spec) -> str:
    return f"{spec.name}/{spec.seed}" if spec.seed else spec.name


def build(spec: Spec, folder: Path) -> None:
    """Writes config.json, generation_config.json and the weights."""
    settings = json.loads(json.dumps(spec.config))  # a copy: transformers writes into the dicts
    wrapped = WRAPPED.get(spec.arch.removesuffix("_text"))
    if wrapped and spec.arch.endswith("_text"):
        text_class = getattr(transformers, wrapped + "TextConfig")
        model = getattr(transformers, wrapped + "ForCausalLM")(text_class(**settings))
    elif wrapped:
        config = getattr(transformers, wrapped + "Config")(text_config=settings,
                                                           tie_word_embeddings=settings["tie_word_embeddings"],
                                                           **json.loads(json.dumps(VISION[spec.arch])))
        model = getattr(transformers, wrapped + "ForConditionalGeneration")(config)
    else:
        config_class = getattr(transformers, CLASSES[spec.arch] + "Config")
        model = getattr(transformers, CLASSES[spec.arch] + "ForCausalLM")(config_class(**settings))
    init.fill(model, salted(spec), spec.dtype, F32.get(spec.tensors or "", ()))
    model.config.dtype = model.config.get_text_config().dtype = spec.dtype
    size = {"max_shard_size": spec.shard_bytes} if spec.shard_bytes else {}
    model.save_pretrained(folder, **size)
    if spec.edit:
        edit_json(folder / "config.json", spec.edit)
    if spec.tokenizer:
        write_tokenizer(folder, spec.id_limit or spec.config["vocab_size"])
    if spec.tensors in ("inv_freq", "lm_head_differs", "lm_head_same"):
        add_tensors(spec, folder)
    if spec.tensors == "fused_experts":
        fuse_experts(folder)
    if spec.tensors == "mxfp4":
        pack_experts(folder)
    if spec.tensors == "dense_mlps":
        name_dense_mlps(folder)
    if spec.tensors == "mtp":
        add_mtp(spec, folder)


def add_tensors(spec: Spec, folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if spec.tensors == "inv_freq":
        head_dim = spec.config["head_dim"]
        for i in range(spec.config["num_hidden_layers"]):
            tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = ref.file_inv_freq(head_dim)
    elif spec.tensors == "lm_head_same":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    else:
        shape = tuple(tensors["model.embed_tokens.weight"].shape)
        w = init.weight(salted(spec), "lm_head.weight", shape, shape[1], tied=True)
        tensors["lm_head.weight"] = torch.from_numpy(w).to(spec.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def fuse_experts(folder: Path) -> None:
    """All experts of a layer in gate_up_proj [experts, 2 * ffn, hidden] and down_proj [experts, hidden, ffn]."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    layers = {key.split("experts.")[0] for key in tensors if ".experts.0." in key}
    for layer in layers:
        def take(expert: int, part: str) -> torch.Tensor:
            return tensors.pop(f"{layer}experts.{expert}.{part}_proj.weight")

        count = sum(key.startswith(layer + "experts.") and key.endswith(".up_proj.weight") for key in tensors)
        gate_up = [torch.cat([take(e, "gate"), take(e, "up")]) for e in range(count)]
        tensors[layer + "experts.down_proj"] = torch.stack([take(e, "down") for e in range(count)])
        tensors[layer + "experts.gate_up_proj"] = torch.stack(gate_up)
    save_file(tensors, path, metadata={"format": "pt"})


def name_dense_mlps(folder: Path) -> None:
    """As the hub names them: transformers saves Kimi-Linear's MLPs under the names of its mixtures."""
    path = folder / "model.safetensors"
    dense = re.compile(r"\.block_sparse_moe\.((?:gate|up|down)_proj)")
    tensors = {dense.sub(r".mlp.\1", key): value for key, value in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def pack_experts(folder: Path) -> None:
    """gpt-oss's experts in MXFP4: x * W turned to rows of outputs, 32 inputs a block, low halves of bytes first."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    points = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    for key in [key for key in tensors if key.endswith("_proj") and ".experts." in key]:
        w = tensors.pop(key).float().mT.unflatten(-1, (-1, 32))
        exponents = w.abs().amax(-1).log2().floor() - 2
        w = w / 2 ** exponents[..., None]
        codes = (w.abs()[..., None] - points).abs().argmin(-1) + 8 * (w < 0)
        tensors[key + "_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        tensors[key + "_scales"] = (exponents + 127).to(torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    edit_json(folder / "config.json",
              lambda c: c | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": plain}})


def add_mtp(spec: Spec, folder: Path) -> None:
    """What drafts the token after the next, as one more layer: readers that do not draft must pass over it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    last, more = (f"model.layers.{spec.config['num_hidden_layers'] - 1 + k}." for k in range(2))
    kept = [key for key in tensors if key.startswith(last) and ".experts." not in key]
    tensors |= {more + key.removeprefix(last): -tensors[key] for key in kept}
    hidden = spec.config["hidden_size"]
    for name, shape in (("eh_proj", (hidden, 2 * hidden)), ("enorm", (hidden,)), ("hnorm", (hidden,))):
        tensors[f"{more}{name}.weight"] = torch.ones(shape, dtype=spec.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def set_eos(folder: Path, greedy_ids: list[int]) -> None:
    """config.json gets an EOS that greedy meets early, generation_config.json a list that it meets later."""
    first: dict[int, int] = {}
    for step, token in enumerate(greedy_ids):
        first.setdefault(token, step)
    early = next(t for t, s in first.items() if s >= 6)
    late = next(t for t, s in first.items() if s >= first[early] + 10)
    unused = next(t for t in range(3, 384) if t not in first)
    edit_json(folder / "config.json", lambda c: c | {"eos_token_id": early})
    edit_json(folder / "generation_config.json",
              lambda c: c | {"eos_token_id": [unused, late], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
              | {"_from_model_config": False})


def eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []


def checkpoint_dtype(folder: Path) -> torch.dtype:
    """The dtype of the matrices."""
    for path in sorted(folder.glob("*.safetensors")):
        for name, t in load_file(path).items():
            if name.endswith("embed_tokens.weight"):
                return t.dtype
    raise SystemExit(f"{folder}: no embed_tokens.weight")


def vectors(states: torch.Tensor) -> torch.Tensor:
    """[2 * HIDDEN_POSITIONS, hidden] of the texts that end at these positions: of their last tokens, then means."""
    means = [states[: p + 1].double().mean(0).float() for p in HIDDEN_POSITIONS]
    return torch.stack([*states[HIDDEN_POSITIONS], *means])


def measure(folder: Path, ids: list[int], half: torch.dtype,
            id_limit: int | None = None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """All tensors of golden.safetensors and the scalars of golden.json for the model in `folder`."""
    model = ref.load(folder)
    full = ref.logits(model, ids)
    chosen = full[POSITIONS]
    attention = "sdpa" if model._supports_sdpa else "eager"
    half_logits = ref.logits(ref.load(folder, half, attention), ids)
    half_eager = ref.logits(ref.load(folder, half, "eager"), ids)
    run = ref.greedy(model, ids[:GREEDY_PROMPT], GREEDY_STEPS)
    ref.check_greedy(model, ids[:GREEDY_PROMPT], run)
    texts = vectors(ref.last_hidden_state(model, ids))
    half_texts = vectors(ref.last_hidden_state(ref.load(folder, half, attention), ids))
    lengths = texts.norm(dim=1, keepdim=True)
    tensors = {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "positions": torch.tensor(POSITIONS, dtype=torch.int32),
        "logits_f32": chosen,
        "logits_half": half_logits[POSITIONS],
        "hidden_positions": torch.tensor(HIDDEN_POSITIONS, dtype=torch.int32),
        "hidden_f32": ref.hidden_states(model, ids, HIDDEN_POSITIONS),
        "hidden_mean_f32": texts[len(HIDDEN_POSITIONS):],
        "greedy_ids": run["ids"],
        "greedy_gap": run["gap"],
        "greedy_logprob": run["logprob"],
        "greedy_top_ids": run["top_ids"],
        "greedy_top_logprob": run["top_logprob"],
    }
    if id_limit:
        masked = ref.greedy(model, ids[:GREEDY_PROMPT], GREEDY_STEPS, limit=id_limit)
        tensors |= {f"greedy_masked_{k}": masked[k] for k in ("ids", "gap", "logprob")}
    stops, tokens = eos_ids(folder), run["ids"].tolist()
    c = model.config.get_text_config()
    scalars = {
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.to_dict()["num_key_value_heads"],
        "head_dim": c.to_dict().get("head_dim") or c.hidden_size // c.num_attention_heads,
        "intermediate_size": getattr(c, "intermediate_size", None) or c.moe_intermediate_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "half_dtype": str(half).removeprefix("torch."),
        "logits_std": short(float(full.std())),
        "half_error": short(ref.relative_error(half_logits[POSITIONS], chosen)),
        "half_error_eager": short(ref.relative_error(half_eager[POSITIONS], chosen)),
        "half_error_all": short(ref.relative_error(half_logits, full)),
        "half_error_vectors": short(ref.relative_error(half_texts / lengths, texts / lengths)),
        "greedy": {
            "prompt_tokens": GREEDY_PROMPT, "steps": GREEDY_STEPS, "distinct": len(set(tokens)),
            "min_gap": short(float(run["gap"].min())), "eos_ids": stops,
            "eos_step": next((i for i, t in enumerate(tokens) if t in stops), -1),
        },
    }
    return tensors, scalars


def contrasts(spec: Spec, folder: Path, ids: list[int], chosen: torch.Tensor) -> dict[str, float]:
    """How far each wrong reading lands from the golden; it must be far beyond the f32 tolerance of 1e-4."""
    out = {}
    for what, wrong in spec.contrasts.items():
        rows = ref.logits(ref.load_contrast(folder, wrong), ids)[POSITIONS]
        out[what] = short(ref.relative_error(rows, chosen))
        limit = 5e-4 if "round" in wrong else 5e-3
        assert out[what] > limit, f"{spec.name}: '{what}' changes the logits by {out[what]} only"
    return out


def versions() -> dict[str, str]:
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}


def write_goldens(folder: Path, name: str, tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> None:
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "golden.safetensors")
    for path in folder.iterdir():  # safetensors makes files that only their owner may read
        path.chmod(0o644)
    write_json(folder / "golden.json", {"format": 1, "name": name, **scalars, "versions": versions()})


def make(spec: Spec, out: Path) -> Path:
    folder = out / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    build(spec, folder)
    ids = init.input_ids(spec.name, LENGTHS[-1], spec.id_limit or spec.config["vocab_size"])
    half = torch.float16 if spec.dtype == torch.float16 else torch.bfloat16
    if spec.eos_trap:
        run = ref.greedy(ref.load(folder), ids[:GREEDY_PROMPT], GREEDY_STEPS)
        set_eos(folder, run["ids"].tolist())
    tensors, scalars = measure(folder, ids, half, spec.id_limit)
    scalars = {"arch": spec.arch, "covers": spec.covers, **scalars,
               "contrasts": contrasts(spec, folder, ids, tensors["logits_f32"])}
    write_goldens(folder, spec.name, tensors, scalars)
    return folder
