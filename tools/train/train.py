"""Trains the model of a job for a fixed time.

    python train.py dendrite-24 --generator ./generate --out OUT

Data streams in from the generator while the device works. The learning rate and the change from one data phase to
the next follow the clock, so a slower device gets a shorter training, not an unfinished one. Writes OUT/model.pt
(float32 masters), OUT/model.safetensors (bf16, to ship) and OUT/training.json.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

import export
import tokenizer
from jobs import JOBS
from model import Llama
from optimizer import make_optimizers
from rows import ROW_TOKENS, RowStream

SHORTEST_DOCUMENT = 16  # tokens; a bound from below, to give arrays a fixed size
QUESTION = tokenizer.ID_OF_BYTE[ord("?")]


def unpack(rows, judge_weight):
    """(tokens, targets, loss weights, what the judge is asked), all [rows, 256], of packed rows; the last column has no
    target. Without a judge's weight nothing is asked of one."""
    packed = rows.long()
    tokens = packed & 0x7FFF
    targets = F.pad(tokens[:, 1:], (0, 1))
    learnt = F.pad((packed < 0)[:, 1:], (0, 1)).float()
    if judge_weight is None:
        return tokens, targets, learnt, None
    judged = (tokens == QUESTION) & (learnt > 0)
    return tokens, targets, learnt * torch.where(judged, judge_weight, 1.0), judged


def document_numbers(tokens):
    return (tokens == tokenizer.BOS).cumsum(dim=1, dtype=torch.int32)


def flex_documents():
    """Attention by a compiled kernel that skips the parts of a row that a mask rules out."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    create = torch.compile(create_block_mask)

    def make(tokens):
        number = document_numbers(tokens)

        def visible(row, head, query, key):
            return (query >= key) & (number[row, query] == number[row, key])

        return create(visible, tokens.shape[0], None, ROW_TOKENS, ROW_TOKENS, device=tokens.device)

    return make, lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def varlen_documents():
    """FlashAttention over the documents as sequences of different length."""
    from torch.nn.attention.varlen import varlen_attn

    def make(tokens):
        """Where documents start, ascending, [most documents that fit + 1]; those that are not there are empty."""
        flat = tokens.flatten()
        position = torch.arange(flat.numel(), dtype=torch.int32, device=flat.device)
        starts = torch.where(flat == tokenizer.BOS, position, flat.numel()).sort().values
        return starts[:flat.numel() // SHORTEST_DOCUMENT + 1].contiguous()

    def attend(q, k, v, starts):
        rows, heads, length, head_dim = q.shape
        q, k, v = (x.transpose(1, 2).reshape(rows * length, -1, head_dim) for x in (q, k, v))
        out = varlen_attn(q, k, v, starts, starts, ROW_TOKENS, ROW_TOKENS, window_size=(-1, 0))
        return out.view(rows, length, heads, head_dim).transpose(1, 2)

    return torch.compile(make, dynamic=False), attend


def dense_documents():
    """The plain form, with a mask of all pairs: what the other two must equal."""

    def make(tokens):
        number = document_numbers(tokens)
        same = number[:, :, None] == number[:, None, :]
        return (same & torch.ones_like(same[0]).tril())[:, None]

    return make, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


# Each gives (tokens of packed rows -> mask, (q, k, v, mask) -> attention that is causal within each document).
DOCUMENT_ATTENTION = {"flex": flex_documents, "varlen": varlen_documents, "dense": dense_documents}


def make_loss(attend, judge_weight):
    def loss_of(model, rows, mask):
        """Weighted mean loss, and the judge's own mean, if there is one."""
        tokens, targets, weights, judged = unpack(rows, judge_weight)
        hidden = model(tokens, lambda q, k, v: attend(q, k, v, mask))
        losses = F.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses.view_as(weights)
        mean = (losses * weights).sum() / weights.sum()
        return mean, None if judged is None else (losses.detach() * judged).sum() / judged.sum()

    return loss_of


def learning_rate_factor(step, progress, warmup_steps=150, floor=0.02):
    return min(1.0, (step + 1) / warmup_steps) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


class Clock:
    """Elapsed training time. The host may run two steps ahead of the device, no more, or it would measure its queue."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.events = []
        self.start = time.perf_counter()

    def tick(self):
        if self.cuda:
            event = torch.cuda.Event(blocking=True)
            event.record()
            self.events.append(event)
            if len(self.events) > 2:
                self.events.pop(0).synchronize()
        return time.perf_counter() - self.start


def train(args):
    job, device = JOBS[args.job], torch.device(args.device)
    seconds, seed = args.seconds or job.seconds, args.seed or job.seed
    if args.threads > 0 and device.type == "cpu":
        torch.set_num_threads(args.threads)
    torch.manual_seed(seed)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    model = Llama(job.config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    optimizers = make_optimizers(model, args.matrix_lr, args.other_lr, args.optimizer)
    make_mask, attend = DOCUMENT_ATTENTION[args.attention]()
    loss_of = make_loss(attend, job.judge_weight)
    if device.type == "cuda":
        loss_of = torch.compile(loss_of, dynamic=False)
    streams = [RowStream(args.generator, phase + 1, seed, args.threads, args.batch_rows, device)
               for phase in range(len(job.phase_starts))]

    def forward_backward(rows):
        tokens = rows.long() & 0x7FFF
        loss, judge_loss = loss_of(model, rows, make_mask(tokens))
        loss.backward()
        return loss.detach(), judge_loss

    started = time.perf_counter()
    forward_backward(streams[0].next())  # compiles; the gradients are thrown away
    for optimizer in optimizers:
        optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    compile_seconds = time.perf_counter() - started
    print(f"{parameters} parameters; first step with compilation took {compile_seconds:.1f} s", flush=True)

    clock, elapsed, step, learnt_tokens = Clock(device), 0.0, 0, torch.zeros((), dtype=torch.int64, device=device)
    next_report, next_save, log = 0.0, args.save_every, []
    while elapsed < seconds and (args.steps == 0 or step < args.steps):
        progress = elapsed / seconds
        phase = sum(progress >= start for start in job.phase_starts)
        rows = streams[phase - 1].next()
        loss, judge_loss = forward_backward(rows)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * learning_rate_factor(step, progress)
            optimizer.step()
            optimizer.zero_grad()
        learnt_tokens += (rows < 0).sum()
        step += 1
        elapsed = clock.tick()
        if elapsed >= next_report:
            tokens = step * args.batch_rows * ROW_TOKENS
            log.append({"seconds": round(elapsed, 1), "step": step, "phase": phase, "tokens": tokens,
                        "loss": round(loss.item(), 4)})
            judge = ""
            if judge_loss is not None:
                log[-1]["judge_loss"] = round(judge_loss.item(), 4)
                judge = f"  judge {judge_loss.item():.4f}"
            print(f"{elapsed:6.1f} s  step {step:6d}  phase {phase}  {tokens / 1e6:7.1f} M tokens  "
                  f"{tokens / elapsed / 1e6:5.2f} M/s  loss {loss.item():.4f}{judge}", flush=True)
            next_report = elapsed + args.report_every
        if elapsed >= next_save:
            export.save_bf16(model, out / "model.safetensors")
            next_save += args.save_every
    for stream in streams:
        stream.close()

    summary = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__, "parameters": parameters, "seed": seed, "optimizer": args.optimizer,
        "matrix_lr": args.matrix_lr, "other_lr": args.other_lr, "batch_tokens": args.batch_rows * ROW_TOKENS,
        "steps": step, "tokens": step * args.batch_rows * ROW_TOKENS, "learnt_tokens": learnt_tokens.item(),
        "seconds": round(elapsed, 1), "compile_seconds": round(compile_seconds, 1), "log": log,
    }
    torch.save(model.state_dict(), out / "model.pt")
    export.save_bf16(model, out / "model.safetensors")
    (out / "training.json").write_text(json.dumps(summary, indent=1))
    print({k: v for k, v in summary.items() if k != "log"}, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--generator", required=True, help="the program built from the job's generator")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, help="default: the job's")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (0: by time alone)")
    parser.add_argument("--seed", type=int, help="default: the job's")
    parser.add_argument("--threads", type=int, default=6, help="threads of the generator")
    parser.add_argument("--batch-rows", type=int, default=512, help="rows of 256 tokens a step")
    parser.add_argument("--attention", choices=DOCUMENT_ATTENTION, default="flex" if torch.cuda.is_available() else "dense")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--matrix-lr", type=float, default=0.02, help="Muon's")
    parser.add_argument("--other-lr", type=float, default=2e-3, help="AdamW's")
    parser.add_argument("--report-every", type=float, default=10)
    parser.add_argument("--save-every", type=float, default=120)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
