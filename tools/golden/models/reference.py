"""Runs transformers and measures: logits, hidden states, greedy continuations.

f32 runs use eager attention on one thread. A model is always loaded with `from_pretrained(dtype=...)`, never cast
with `.to()`, which would round the RoPE frequencies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any, Iterator

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Mxfp4Config

transformers.logging.set_verbosity_error()
logging.getLogger("transformers").setLevel(logging.ERROR)
with contextlib.suppress(Exception):
    transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = False


def load(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> torch.nn.Module:
    config = AutoConfig.from_pretrained(folder)
    known = type(config) in AutoModelForCausalLM._model_mapping
    packed = getattr(config, "quantization_config", {}).get("quant_method") == "mxfp4"
    more = {"quantization_config": Mxfp4Config(dequantize=True)} if packed else {}
    # Mixtures: expert by expert, not by a product of all.
    model = (AutoModelForCausalLM if known else AutoModelForImageTextToText).from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, experts_implementation="eager", **more)
    return model.eval()


def text_model(model: torch.nn.Module) -> torch.nn.Module:
    """What has the embedding, layers and the final norm."""
    return getattr(model.model, "language_model", model.model)


@torch.no_grad()
def logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab], in the dtype the model computes."""
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, ids: list[int], positions: list[int]) -> torch.Tensor:
    """[layers + 2, positions, hidden]: what enters the first layer, the residual stream after each layer, the final
    norm's output.

    (transformers' own output_hidden_states leaves out the last layer's output before the norm.)
    """
    taken: list[torch.Tensor] = []

    def enter(_module: Any, inputs: Any) -> None:
        taken.append(inputs[0][0, positions].clone())

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        taken.append((output[0] if isinstance(output, tuple) else output)[0, positions].clone())

    inner = text_model(model)
    handles = [inner.layers[0].register_forward_pre_hook(enter)]
    last = next(getattr(inner, name) for name in ("embedding_norm", "norm_f", "norm") if hasattr(inner, name))
    handles += [m.register_forward_hook(hook) for m in (*inner.layers, last)]
    model(torch.tensor([ids]), use_cache=False)
    for h in handles:
        h.remove()
    return torch.stack(taken)


@torch.no_grad()
def last_hidden_state(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[tokens, hidden], f32: the final norm's output, which vectors of texts are made of."""
    return text_model(model)(torch.tensor([ids]), use_cache=False).last_hidden_state[0].float()


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], steps: int, top: int = 5,
           limit: int | None = None) -> dict[str, torch.Tensor]:
    """Greedy continuation, which ignores EOS, with the gap between the two best logits at each step.

    With `limit` only ids below it are chosen; log-probs stay those of the whole vocabulary. Mamba-2 goes without a
    cache: transformers holds dt within its limits where it has many tokens, and not where it has one.
    """
    ids, gaps, chosen, top_ids, top_logits = [], [], [], [], []
    tokens, cache = torch.tensor([prompt]), None
    whole = model.config.model_type in ("granitemoehybrid", "nemotron_h")
    for _ in range(steps):
        if whole:
            tokens = torch.tensor([prompt + ids])
        out = model(tokens, past_key_values=cache, use_cache=not whole)
        cache = out.past_key_values
        row = out.logits[0, -1].float()
        best = torch.topk(row[:limit], max(top, 2))
        log_probs = torch.log_softmax(row.double(), -1)
        token = int(row[:limit].argmax())  # the lowest id among equals
        ids.append(token)
        gaps.append(float(best.values[0] - best.values[1]))
        chosen.append(float(log_probs[token]))
        top_ids.append(best.indices[:top])
        top_logits.append(row)
        tokens = torch.tensor([[token]])
    rows = torch.stack(top_logits)
    order = torch.stack(top_ids)
    return {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "gap": torch.tensor(gaps),
        "logprob": torch.tensor(chosen),
        "top_ids": order.to(torch.int32),
        "top_logprob": torch.log_softmax(rows.double(), -1).gather(1, order).float(),
        "top_logprob_t07": torch.log_softmax(rows.double() / 0.7, -1).gather(1, order).float(),
    }


def check_greedy(model: torch.nn.Module, prompt: list[int], run: dict[str, torch.Tensor]) -> None:
    """One forward over everything must choose the same tokens: the cache played no trick."""
    ids = run["ids"].tolist()
    rows = logits(model, prompt + ids[:-1])[len(prompt) - 1:]
    bad = [i for i, (row, t) in enumerate(zip(rows, ids)) if float(row.max() - row[t]) > 1e-3]
    assert not bad, f"cached and uncached greedy differ at steps {bad[:5]}"


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """L2 error of a against b, relative to b."""
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


@contextlib.contextmanager
def edited_copy(folder: Path, config: dict[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp) / "model"
        shutil.copytree(folder, copy)
        path = copy / "config.json"
        whole = json.loads(path.read_text())
        c = whole.get("text_config", whole)
        for key, value in config.items():
            c[key] = value
            if value is None and key != "sliding_window":
                del c[key]
        path.write_text(json.dumps(whole))
        yield copy


@torch.no_grad()
def load_contrast(folder: Path, wrong: dict[str, Any]) -> torch.nn.Module:
    """The model as a mistaken reader would see it (specs.py says which mistakes exist)."""
    with edited_copy(folder, wrong.get("config", {})) as copy:
        model = load(copy)
    if "scaling" in wrong:
        for module in model.modules():
            if hasattr(module, "scaling"):
                module.scaling = wrong["scaling"]
    for name, p in (*model.named_parameters(), *model.named_buffers()):
        for part, value in wrong.get("fill", {}).items():
            if name.endswith(part):
                p.fill_(value)
    for name, module in list(model.named_modules()):
        last = name.split(".")[-1]
        if last in wrong.get("skip", []):
            model.set_submodule(name, torch.nn.Identity())
        if "group_size" in wrong and hasattr(module, "group_size"):
            module.group_size = wrong["group_size"]
        if "gate" in wrong and last == "o_norm":
            module.activation = wrong["gate"]
        if wrong.get("gated_behind") and hasattr(module, "group_size"):
            module.forward = gated_behind(module)
        if "norm_width" in wrong and last in ("q_norm", "k_norm"):
            module.register_forward_hook(norm_by(wrong["norm_width"]))
        if wrong.get("outputs") and last == "feed_forward" and hasattr(module, "router"):
            module.forward = weighing_outputs(module)
        if "router" in wrong and last in ("gate", "router"):
            module.register_forward_hook(ROUTERS[wrong["router"]])
    for name, p in model.named_parameters():
        if "zero" in wrong and name.endswith(wrong["zero"]):
            p.zero_()
        if any(part in name for part in wrong.get("ones", [])):
            p.fill_(1.0)
        for part, by in wrong.get("shift", {}).items():
            if part in name:
                p.add_(by)
        if "flip" in wrong and name.endswith(wrong["flip"]):
            p.copy_(p.flip(-1))
        if "swap" in wrong and name.endswith(wrong["swap"]):
            p.copy_(torch.cat(p.chunk(2, dim=-2)[::-1], dim=-2))
        if "crossed" in wrong and name.endswith(wrong["crossed"]):
            p.copy_(torch.cat(p.chunk(2, dim=-1)[::-1], dim=-1))
        if "stacked" in wrong and name.endswith(wrong["stacked"]):  # rows in turns read as all gates, then all ups
            p.copy_(torch.stack(p.chunk(2, dim=-1), dim=-1).flatten(-2))
        if "neighbours" in wrong and p.dim() == 3 and name.endswith(wrong["neighbours"]):  # among what is summed up
            p.copy_(p.unflatten(1, (-1, 2)).flip(2).flatten(1, 2))
        if "odd" in wrong and name.endswith(wrong["odd"][0]):
            p[..., 1::2].add_(wrong["odd"][1])
        if "grouped" in wrong and name.endswith(wrong["grouped"]):
            p.copy_(by_key_head(p, model.config))
        if "unpaired" in wrong and any(part in name for part in ("q_proj", "k_proj")):
            p.copy_(unpaired(p, wrong["unpaired"], model.config))
        if "split" in wrong and name.endswith(wrong["split"]):
            p.copy_(packed_by_key_head(p, model.config))
        if "thirds" in wrong and name.endswith(wrong["thirds"]):  # the first two of three parts are the other's
            first, second, third = p.chunk(3)
            p.copy_(torch.cat([second, first, third]))
        if wrong.get("c_and_b") and any(part in name for part in ("in_proj", "conv1d")):
            p.copy_(c_before_b(name, p, model.config))
        if "roll" in wrong and name.endswith(wrong["roll"]):
            p.copy_(p.roll(1, 0))
        if "halves" in wrong and name.endswith(wrong["halves"]):
            heads, dim = model.config.num_attention_heads, model.config.head_dim
            p.copy_(p.reshape(2, heads, dim, -1).transpose(0, 1).reshape(p.shape))
        if "turns" in wrong and "linear_attn" in name:
            p.copy_(value_heads_in_turns(name, p, model.config))
        if "round" in wrong:
            p.copy_(p.to({"bf16": torch.bfloat16, "f16": torch.float16}[wrong["round"]]).float())
    if "inv_freq" in wrong:
        # what the file holds: the unscaled frequencies, rounded
        d = model.config.head_dim
        model.model.rotary_emb.inv_freq = file_inv_freq(d)
    if wrong.get("tie"):
        model.lm_head.weight = text_model(model).embed_tokens.weight
    return model


def weighing_outputs(module: Any) -> Any:
    """A mixture of Llama 4 whose weights are of what experts give."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        rows = x.reshape(-1, x.shape[-1])
        scores, logits = module.router(rows)
        count = scores.shape[1]
        routed = module.experts(rows.repeat(count, 1)).reshape(count, -1, rows.shape[1])
        return module.shared_expert(rows) + (routed * scores.T[..., None]).sum(0), logits

    return forward


def norm_by(width: int) -> Any:
    """A norm of many heads at once as one of each."""

    def hook(module: Any, inputs: Any, _output: Any) -> torch.Tensor:
        x = inputs[0].unflatten(-1, (-1, width))
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)).flatten(-2) * module.weight

    return hook


def gated_behind(module: Any) -> Any:
    """A norm of Mamba-2 whose gates come behind it."""
    inner = module.forward
    return lambda x, gate=None: inner(x) * torch.nn.functional.silu(gate)


def c_before_b(name: str, p: torch.Tensor, c: Any) -> torch.Tensor:
    """What Mamba-2 takes in as if C came before B."""
    inner = c.hidden_size * c.mamba_expand if hasattr(c, "mamba_expand") else c.mamba_num_heads * c.mamba_head_dim
    first = 2 * inner if "in_proj" in name else inner
    width = c.mamba_n_groups * c.mamba_d_state if hasattr(c, "mamba_expand") else c.n_groups * c.ssm_state_size
    before, b, c_rows, behind = p.split([first, width, width, p.shape[0] - first - 2 * width])
    return torch.cat([before, c_rows, b, behind])


def biased_weights(module: Any, inputs: Any, output: Any) -> Any:
    """The bias that corrects choices in the weights too."""
    logits, weights, index = output
    bias = inputs[1] if len(inputs) > 1 else module.e_score_correction_bias
    chosen = (logits.sigmoid() + bias).gather(1, index)
    return logits, chosen * weights.sum(1, keepdim=True) / chosen.sum(1, keepdim=True), index


def weights_of_all(_module: Any, _inputs: Any, output: Any) -> Any:
    """A softmax over all experts instead of over the chosen."""
    logits, _, index = output
    return logits, logits.softmax(-1).gather(1, index), index


def groups_by_best(module: Any, _inputs: Any, output: Any) -> Any:
    """Groups chosen by their best expert instead of their two best."""
    scores = output[0].sigmoid()
    groups = (scores + module.e_score_correction_bias).unflatten(1, (module.num_group, -1))
    out = groups.amax(-1).argsort(1, descending=True)[:, module.topk_group:]
    groups = groups.scatter(1, out[..., None].expand(-1, -1, groups.shape[2]), float("-inf"))
    index = groups.flatten(1).topk(module.top_k)[1]
    weights = scores.gather(1, index)
    if module.norm_topk_prob:
        weights = weights / weights.sum(1, keepdim=True)
    return output[0], weights * module.routed_scaling_factor, index


ROUTERS = {"biased weights": biased_weights, "weights of all": weights_of_all, "groups by best": groups_by_best}


def by_key_head(p: torch.Tensor, c: Any) -> torch.Tensor:
    """Rows of qkv_proj read as queries, key and value of the first key head, then of the next."""
    ratio = c.num_attention_heads // c.num_key_value_heads
    rows = p.reshape(c.num_key_value_heads, ratio + 2, -1, p.shape[1])
    return torch.cat([part.reshape(-1, p.shape[1]) for part in rows.split([ratio, 1, 1], dim=1)])


def unpaired(p: torch.Tensor, width: int, c: Any) -> torch.Tensor:
    """Where neighbours rotate together: as if the first half of `width` channels rotated with the second."""
    heads = p.reshape(-1, c.head_dim, *p.shape[1:])
    turned = torch.stack(heads[:, :width].chunk(2, dim=1), dim=2).flatten(1, 2)
    return torch.cat([turned, heads[:, width:]], dim=1).reshape(p.shape)


def value_heads_in_turns(name: str, p: torch.Tensor, c: Any) -> torch.Tensor:
    """A delta network's parameter as if value head j went by key head j % key_heads: all that is a value head's moves
    to where heads of that key are."""
    keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    order = torch.arange(values).reshape(-1, keys).T.reshape(-1)
    if name.endswith("out_proj.weight"):
        return p.reshape(p.shape[0], values, -1)[:, order].reshape(p.shape)
    if name.endswith("norm.weight"):
        return p
    before = 2 * keys * c.linear_key_head_dim if name.endswith(("in_proj_qkv.weight", "conv1d.weight")) else 0
    moved = p[before:].reshape(values, -1, *p.shape[1:])[order].reshape(p[before:].shape)
    return torch.cat([p[:before], moved])


def packed_by_key_head(p: torch.Tensor, c: Any) -> torch.Tensor:
    """Rows that are all queries, then all keys, values and gates, as in_proj_qkvz has them."""
    heads = c.linear_num_key_heads
    values = c.linear_num_value_heads // heads * c.linear_value_head_dim
    sizes = [c.linear_key_head_dim, c.linear_key_head_dim, values, values]
    parts = p.split([heads * size for size in sizes])
    return torch.cat([part.reshape(heads, -1, p.shape[1]) for part in parts], dim=1).reshape(p.shape)


def file_inv_freq(head_dim: int) -> torch.Tensor:
    return (1.0 / (10000.0 ** (torch.arange(0, head_dim, 2).float() / head_dim))).to(torch.bfloat16).float()
