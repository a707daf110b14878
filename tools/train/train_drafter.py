"""Trains the block drafter of a job for a fixed time, for a model of models/ that stays as it is.

    python train_drafter.py dendrite-24-dflash --generator ./generate --out FOLDER

Documents stream in as for the model itself; the model reads them, and blocks begin at random places of what was learnt.
The clock rules as in train.py. Writes FOLDER (bf16, to ship) with training.json.
"""

import argparse
import json
import pathlib
import time

import torch
import torch.nn.functional as F

import blocks
import drafter as block_drafter
import export
from jobs import DRAFTERS
from optimizer import make_optimizers
from own_text import OwnText
from rows import ROW_TOKENS, RowStream
from train import DOCUMENT_ATTENTION, Clock, learning_rate_factor

MODELS = pathlib.Path(__file__).resolve().parent / "../../models"
WARMUP_STEPS = 150
GAMMA = 7.0  # for blocks of 16 (DFlash, arXiv 2602.06036)


def make_reader(target, taps, attend):
    """(tokens, mask) -> the target's streams after its tapped layers."""

    def read(tokens, mask):
        with torch.no_grad():
            return blocks.tapped(target, taps, tokens, lambda q, k, v: attend(q, k, v, mask))[0]

    return read


def make_loss(embedding, attend, gamma):
    def loss_of(drafter, features, tokens, learnt, anchors, valid, mask):
        """Weighted mean loss, and how often the first mask and all masks are right (weighted), over blocks."""
        c = drafter.config
        logits = blocks.block_logits(drafter, embedding, features, tokens, anchors,
                                     lambda q, k, v: attend(q, k, v, mask)).flatten(1, 2)
        wanted, weights = blocks.labels(tokens, learnt, anchors, valid, c, gamma)
        losses = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(weights)
        right = (logits.detach().argmax(dim=-1) == wanted) * weights
        first = slice(1, None, c.block_size)
        return ((losses * weights).sum() / weights.sum(), right[:, first].sum() / weights[:, first].sum(),
                right.sum() / weights.sum())

    return loss_of


def train(args):
    job, device = DRAFTERS[args.job], torch.device(args.device)
    seconds, seed = args.seconds or job.seconds, args.seed or job.seed
    if device.type == "cpu":
        torch.set_num_threads(max(1, args.threads))
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = export.load(MODELS / job.target, dtype, device).to(dtype).requires_grad_(False)
    drafter = block_drafter.Drafter(job.config, dtype).to(device)
    optimizers = make_optimizers(drafter, args.matrix_lr, args.other_lr, args.optimizer)
    make_document_mask, attend_documents = DOCUMENT_ATTENTION[args.attention]()
    make_block_mask, attend_blocks = blocks.BLOCK_ATTENTION[args.attention]()
    read = make_reader(target, job.config.taps, attend_documents)
    loss_of = make_loss(target.embedding, attend_blocks, GAMMA)
    if device.type == "cuda":
        read, loss_of = (torch.compile(f, dynamic=False) for f in (read, loss_of))
    documents = RowStream(args.generator, job.phase, seed, args.threads, args.batch_rows, device)
    own = None
    if job.own_text_from is not None:
        own = OwnText(target, RowStream(args.generator, job.phase, seed + 1, args.threads, args.batch_rows, device),
                      args.batch_rows)

    def forward_backward(rows):
        tokens, learnt = rows.long() & 0x7FFF, rows < 0
        anchors, valid = blocks.choose_anchors(learnt, args.anchors)
        features = read(tokens, make_document_mask(tokens))
        mask = make_block_mask(tokens, anchors, job.config.block_size)
        loss, *right = loss_of(drafter, features, tokens, learnt, anchors, valid, mask)
        loss.backward()
        return loss.detach(), *right, valid.sum()

    started = time.perf_counter()
    forward_backward(documents.next())  # compiles; the gradients are thrown away
    for optimizer in optimizers:
        optimizer.zero_grad()
    if own is not None and device.type == "cuda":
        own.next()
    if device.type == "cuda":
        torch.cuda.synchronize()
    compile_seconds = time.perf_counter() - started
    parameters = sum(p.numel() for p in drafter.parameters())
    print(f"{parameters} parameters; first step with compilation took {compile_seconds:.1f} s", flush=True)

    clock, elapsed, step, next_report, log = Clock(device), 0.0, 0, 0.0, []
    drafted_blocks = torch.zeros((), dtype=torch.int64, device=device)
    while elapsed < seconds and (args.steps == 0 or step < args.steps):
        progress = elapsed / seconds
        is_own = own is not None and progress >= job.own_text_from and step % 2 == 1
        loss, first, right, count = forward_backward((own if is_own else documents).next())
        drafted_blocks += count
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * learning_rate_factor(step, progress, WARMUP_STEPS)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        elapsed = clock.tick()
        if elapsed >= next_report:
            log.append({"seconds": round(elapsed, 1), "step": step, "own": is_own, "loss": round(loss.item(), 4),
                        "first_right": round(first.item(), 4), "right": round(right.item(), 4)})
            print(f"{elapsed:6.1f} s  step {step:6d}  {'own text ' if is_own else 'documents'}  loss {loss.item():.4f}"
                  f"  right: first {first.item():.4f}, weighted {right.item():.4f}", flush=True)
            next_report = elapsed + args.report_every
    documents.close()
    if own is not None:
        own.prompts_from.close()

    summary = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "torch": torch.__version__,
        "target": job.target, "parameters": parameters, "seed": seed, "optimizer": args.optimizer,
        "matrix_lr": args.matrix_lr, "other_lr": args.other_lr, "batch_tokens": args.batch_rows * ROW_TOKENS,
        "anchors_a_row": args.anchors, "gamma": GAMMA, "steps": step, "tokens": step * args.batch_rows * ROW_TOKENS,
        "blocks": drafted_blocks.item(), "own_texts": own.texts if own else 0, "seconds": round(elapsed, 1),
        "compile_seconds": round(compile_seconds, 1), "log": log,
    }
    folder = pathlib.Path(args.out)
    block_drafter.write_folder(drafter, folder)
    (folder / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    print({k: v for k, v in summary.items() if k != "log"}, flush=True)


def main():
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=DRAFTERS)
    parser.add_argument("--generator", required=True, help="the program built from the target's generator")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, help="default: the job's")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (0: by time alone)")
    parser.add_argument("--seed", type=int, help="default: the job's")
    parser.add_argument("--threads", type=int, default=6, help="threads of the generator, and of a CPU that trains")
    parser.add_argument("--batch-rows", type=int, default=512, help="rows of 256 tokens a step")
    parser.add_argument("--anchors", type=int, default=8, help="blocks a row")
    parser.add_argument("--attention", choices=blocks.BLOCK_ATTENTION, default="flex" if on_gpu else "dense")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--matrix-lr", type=float, default=0.02, help="Muon's")
    parser.add_argument("--other-lr", type=float, default=2e-3, help="AdamW's")
    parser.add_argument("--report-every", type=float, default=10)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
