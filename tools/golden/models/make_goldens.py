#!/usr/bin/env python3
"""Makes the golden models and their reference results. See ../README.md.

  python tools/golden/models/make_goldens.py --out tests/data/models [--only NAME ...]
  python tools/golden/models/make_goldens.py --out tests/data/models --check
  python tools/golden/models/make_goldens.py --out tests/data/models --model models/dendrite-24
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check  # noqa: E402
import greedy50  # noqa: E402
import pins  # noqa: E402
import rope  # noqa: E402
import writer  # noqa: E402
from specs import SPECS, Spec, by_name  # noqa: E402

LIMIT_BYTES = 13_000_000


def make_spec(spec: Spec, out: Path) -> None:
    folder = writer.make(spec, out)
    if spec.greedy50:
        prompts = greedy50.random_prompts(spec.name, spec.config["vocab_size"])
        greedy50.write(folder, prompts, folder / "greedy50.safetensors")
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{spec.name:28s} {size:8d} bytes", flush=True)


def make_external(model: Path, out: Path, prompts_file: Path | None) -> Path:
    """Goldens (no weights) of a model that lies elsewhere; its prompts are text."""
    name = model.resolve().name
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    prompts = greedy50.text_prompts(model, prompts_file)
    ids: list[int] = []
    reference = writer.ref.load(model)
    for prompt in prompts:  # solved puzzles one after the other, as in a few-shot prompt
        ids += prompt + reference_answer(reference, prompt, writer.eos_ids(model))
        if len(ids) >= writer.LENGTHS[-1]:
            break
    half = writer.checkpoint_dtype(model)
    half = half if half == writer.torch.float16 else writer.torch.bfloat16
    tensors, scalars = writer.measure(model, ids[: writer.LENGTHS[-1]], half)
    scalars["greedy50"] = greedy50.write(model, prompts, folder / "greedy50.safetensors")
    writer.write_goldens(folder, name, tensors, scalars)
    print(f"{name:28s} {sum(p.stat().st_size for p in folder.iterdir()):8d} bytes (goldens only)")
    return folder


def reference_answer(model: object, prompt: list[int], stops: list[int]) -> list[int]:
    ids = writer.ref.greedy(model, prompt, 64)["ids"].tolist()
    end = next((i + 1 for i, t in enumerate(ids) if t in stops), len(ids))
    return ids[:end]


def run_check(out: Path, specs: list[Spec], everything: bool) -> int:
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as tmp:
        fresh = Path(tmp)
        for spec in specs:
            make_spec(spec, fresh)
            differences += check.compare(out / spec.name, fresh / spec.name)
        if everything:
            rope.write(fresh / "rope.json")
            differences += check.compare(out.parent / "rope.json", fresh / "rope.json")
    print("\n".join(differences) or f"{len(specs)} models agree")
    return 1 if differences else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="tests/data/models; rope.json goes beside it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument("--check", action="store_true", help="make everything anew elsewhere and compare")
    parser.add_argument("--model", type=Path, help="make goldens for this model folder instead")
    parser.add_argument("--prompts", type=Path, help="with --model: prompts, one a line (default: held-out puzzles)")
    args = parser.parse_args()

    if args.model:
        if args.check:
            with tempfile.TemporaryDirectory() as tmp:
                fresh = make_external(args.model, Path(tmp), args.prompts)
                differences = check.compare(args.out / fresh.name, fresh)
            print("\n".join(differences) or "the goldens agree")
            return 1 if differences else 0
        make_external(args.model, args.out, args.prompts)
        pins.write()
        return 0

    specs = [by_name(n) for n in args.only] if args.only else SPECS
    if args.check:
        return run_check(args.out, specs, everything=not args.only)
    args.out.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        make_spec(spec, args.out)
    if not args.only:
        rope.write(args.out.parent / "rope.json")
    pins.write()
    total = sum(p.stat().st_size for p in args.out.rglob("*") if p.is_file())
    print(f"{'total':28s} {total:8d} bytes")
    if total > LIMIT_BYTES:
        print(f"more than the limit of {LIMIT_BYTES} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
