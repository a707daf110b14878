"""The larger greedy check: 50 prompts, 128 tokens each, and the five best tokens of ten of them."""

from __future__ import annotations

from pathlib import Path

import init
import reference as ref
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

PROMPTS, STEPS = 50, 128
TOP_PROMPTS, TOP_STEPS, TOP = 10, 32, 5


def random_prompts(name: str, limit: int) -> list[list[int]]:
    """Lengths 1 to 96, page borders among them."""
    rng = init.stream(name, "greedy50")
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96]
    lengths += [int(n) for n in rng.integers(1, 97, PROMPTS - len(lengths))]
    return [[1] + [int(i) for i in rng.integers(3, limit, n - 1)] for n in lengths]


def text_prompts(folder: Path, path: Path | None) -> list[list[int]]:
    """One prompt a line, each ends with a line feed; without a file, the model's own held-out puzzles."""
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if path:
        lines = path.read_text().splitlines()
    else:
        lines = heldout_puzzles(folder)
    lines = [line for line in lines if line.strip()]
    step = max(1, len(lines) // PROMPTS)  # spread over the file, which is sorted
    return [tok.encode(line + "\n").ids for line in lines[::step][:PROMPTS]]


def heldout_puzzles(folder: Path) -> list[str]:
    """The solvable ones of game24_heldout.txt, whose lines are `1 4 5 6 10` (1 = solvable) or comments."""
    path = folder / "game24_heldout.txt"
    if not path.exists():
        raise SystemExit(f"{path} is missing: give --prompts FILE with one prompt a line")
    rows = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return ["S 24: " + " ".join(row[1:]) for row in rows if len(row) == 5 and row[0] == "1"]


def write(folder: Path, prompts: list[list[int]], path: Path) -> dict[str, object]:
    """Writes greedy50.safetensors and returns scalars for golden.json."""
    assert len(prompts) == PROMPTS, f"{len(prompts)} prompts, {PROMPTS} are needed"
    model = ref.load(folder)
    runs = []
    for k, prompt in enumerate(prompts):
        runs.append(ref.greedy(model, prompt, STEPS, TOP))
        if k % 10 == 0:
            ref.check_greedy(model, prompt, runs[-1])
    offsets = [0]
    for p in prompts:
        offsets.append(offsets[-1] + len(p))

    def tops(key: str) -> torch.Tensor:
        return torch.stack([r[key][:TOP_STEPS] for r in runs[:TOP_PROMPTS]])

    tensors = {
        "prompt_ids": torch.tensor([i for p in prompts for i in p], dtype=torch.int32),
        "prompt_offsets": torch.tensor(offsets, dtype=torch.int32),
        "ids": torch.stack([r["ids"] for r in runs]),
        "gap": torch.stack([r["gap"] for r in runs]),
        "logprob": torch.stack([r["logprob"] for r in runs]),
        "top_ids": tops("top_ids"),
        "top_logprob": tops("top_logprob"),
        "top_logprob_t07": tops("top_logprob_t07"),
    }
    save_file({k: t.contiguous() for k, t in tensors.items()}, path)
    path.chmod(0o644)
    gaps = tensors["gap"]
    return {"prompts": PROMPTS, "steps": STEPS, "gaps_below_0.001": int((gaps < 1e-3).sum()),
            "gaps_below_0.25": int((gaps < 0.25).sum())}
