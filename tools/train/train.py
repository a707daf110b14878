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
from optimizer import make_optimizers
from rows import PIECE_BITS, PIECE_SHIFT, SEES_ALL, TOKEN_BITS, RowStream

SHORTEST_DOCUMENT = 16  # tokens; a bound from below, to give arrays a fixed size
QUESTION = tokenizer.ID_OF_BYTE[ord("?")]


def unpack(rows, judge_weight, text_weight=0.0):
    """(tokens, targets, loss weights, what the judge is asked), all [rows, length], of packed rows; the last column has no
    target. Without a judge's weight nothing is asked of one. Text that is not to be learnt weighs `text_weight`; with
    such a weight, what is to be learnt takes the place of what the judge is asked."""
    packed = rows.long()
    tokens = packed & TOKEN_BITS
    targets = F.pad(tokens[:, 1:], (0, 1))
    learnt = F.pad((packed < 0)[:, 1:], (0, 1)).float()
    if text_weight > 0:
        answers = learnt > 0
        text = F.pad(~answers[:, :-1] & (targets[:, :-1] < tokenizer.BOS), (0, 1))
        return tokens, targets, torch.where(text, text_weight, learnt), answers
    if judge_weight is None:
        return tokens, targets, learnt, None
    judged = (tokens == QUESTION) & (learnt > 0)
    return tokens, targets, learnt * torch.where(judged, judge_weight, 1.0), judged


def document_numbers(tokens, bos=True):
    """Which document each token is of. Without `bos` a <|bos|> is a document of its own."""
    begins = tokens == tokenizer.BOS
    number = begins.cumsum(dim=1, dtype=torch.int32)
    return number if bos else 2 * number - begins.int()


def piece_numbers(rows):
    return (rows >> PIECE_SHIFT & PIECE_BITS).to(torch.int32)


def flex_documents(pieces=False, bos=True):
    """Attention by a compiled kernel that skips the parts of a row that a mask rules out."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    create = torch.compile(create_block_mask)

    def make(tokens):
        number, piece = document_numbers(tokens & TOKEN_BITS, bos), piece_numbers(tokens)
        rows, length = tokens.shape

        def visible(row, head, query, key):
            return (query >= key) & (number[row, query] == number[row, key])

        def visible_piece(row, head, query, key):
            of_query, of_key = piece[row, query], piece[row, key]
            seen = (of_key == 0) | (of_query == of_key) | (of_query == SEES_ALL)
            return seen & (query >= key) & (number[row, query] == number[row, key])

        return create(visible_piece if pieces else visible, rows, None, length, length, device=tokens.device)

    return make, lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def varlen_documents(pieces=False, bos=True):
    """FlashAttention over the documents as sequences of different length."""
    from torch.nn.attention.varlen import varlen_attn

    if pieces or not bos:
        raise ValueError("varlen has no attention of pieces or without <|bos|>; expected flex or dense")

    def make(tokens):
        """Where documents start, ascending, [most documents that fit + 1]; those that are not there are empty."""
        flat = (tokens & TOKEN_BITS).flatten()
        position = torch.arange(flat.numel(), dtype=torch.int32, device=flat.device)
        starts = torch.where(flat == tokenizer.BOS, position, flat.numel()).sort().values
        return starts[:flat.numel() // SHORTEST_DOCUMENT + 1].contiguous()

    def attend(q, k, v, starts):
        rows, heads, length, head_dim = q.shape
        q, k, v = (x.transpose(1, 2).reshape(rows * length, -1, head_dim) for x in (q, k, v))
        out = varlen_attn(q, k, v, starts, starts, length, length, window_size=(-1, 0))
        return out.view(rows, length, heads, head_dim).transpose(1, 2)

    return torch.compile(make, dynamic=False), attend


def dense_documents(pieces=False, bos=True):
    """The plain form, with a mask of all pairs: what the other two must equal."""

    def make(tokens):
        number, piece = document_numbers(tokens & TOKEN_BITS, bos), piece_numbers(tokens)
        same = number[:, :, None] == number[:, None, :]
        if pieces:
            of_query, of_key = piece[:, :, None], piece[:, None, :]
            same &= (of_key == 0) | (of_query == of_key) | (of_query == SEES_ALL)
        return (same & torch.ones_like(same[0]).tril())[:, None]

    return make, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def sliced_documents(pieces=False, bos=True):
    """One document after the other, for a CPU: nothing is computed that a mask would rule out."""
    if pieces:
        raise ValueError("sliced has no attention of pieces; expected flex or dense")

    def make(tokens):
        """(row, begin, end) of each document, with the padding behind it."""
        found = []
        for row, begins in enumerate((tokens & TOKEN_BITS) == tokenizer.BOS):
            starts = begins.nonzero().flatten().tolist()
            for a, b in zip(starts, starts[1:] + [tokens.shape[1]]):
                found += [(row, a, b)] if bos else [(row, a, a + 1), (row, a + 1, b)]
        return found

    def attend(q, k, v, documents):
        out = [F.scaled_dot_product_attention(*(x[row:row + 1, :, begin:end] for x in (q, k, v)), is_causal=True,
                                              enable_gqa=True) for row, begin, end in documents]
        rows, heads, length, _ = q.shape
        return torch.cat(out, dim=2).view(heads, rows, length, -1).transpose(0, 1)

    return make, attend


# Each gives (packed rows [rows, length] as integers -> mask, (q, k, v, mask) -> attention that is causal within each
# document); with `pieces` also a document's pieces see what packing.h says;
# without `bos` no document sees the <|bos|> in front of it.
DOCUMENT_ATTENTION = {"flex": flex_documents, "varlen": varlen_documents, "dense": dense_documents,
                      "sliced": sliced_documents}


def make_loss(attend, judge_weight, text_weight=0.0, ahead_weight=0.0):
    """`ahead_weight`: of what a model's MTP head says, beside the model's own loss."""

    def loss_of(model, rows, mask):
        """Weighted mean loss, and the own mean of the judge or of answers amid text, if there are such."""
        tokens, targets, weights, judged = unpack(rows, judge_weight, text_weight)

        def attention(q, k, v):
            return attend(q, k, v, mask)

        def losses_of(states):
            losses = F.cross_entropy(model.logits(states).flatten(0, 1), targets.flatten(), reduction="none")
            return losses.view_as(weights)

        hidden = model(tokens, attention)
        losses = losses_of(hidden)
        mean = (losses * weights).sum() / weights.sum()
        if ahead_weight > 0:
            mean = mean + ahead_weight * (losses_of(model.ahead(tokens, hidden, attention)) * weights).sum() / weights.sum()
        return mean, None if judged is None else (losses.detach() * judged).sum() / judged.sum()

    return loss_of


def learning_rate_factor(step, progress, warmup_steps, floor=0.02):
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

    if (args.start_from is None) != (job.start_from is None):
        raise SystemExit(f"--start-from: got {args.start_from}; {args.job} starts from {job.start_from or 'nothing'}")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = export.load(args.start_from, dtype, device) if args.start_from else export.build(job.config, dtype).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    matrix_lr = job.matrix_lr if args.matrix_lr is None else args.matrix_lr
    other_lr = job.other_lr if args.other_lr is None else args.other_lr
    optimizers = make_optimizers(model, matrix_lr, other_lr, args.optimizer)
    make_mask, attend = DOCUMENT_ATTENTION[args.attention or ("dense" if job.pieces else "sliced")](job.pieces, job.bos)
    loss_of = make_loss(attend, job.judge_weight, job.text_weight if args.text_weight is None else args.text_weight,
                        job.ahead_weight)
    if device.type == "cuda":
        loss_of = torch.compile(loss_of, dynamic=False)
    batch_rows = args.batch_rows or job.batch_rows
    batch_tokens = batch_rows * job.row_tokens
    streams = [RowStream(args.generator, phase + 1, seed, args.threads, batch_rows, device, job.row_tokens,
                         job.generator_flags)
               for phase in range(len(job.phase_starts))]

    def forward_backward(rows):
        loss, judge_loss = loss_of(model, rows, make_mask(rows.long()))
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

    own = "answers" if job.judge_weight is None else "judge"
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
                group["lr"] = group["peak_lr"] * learning_rate_factor(step, progress, job.warmup_steps)
            optimizer.step()
            optimizer.zero_grad()
        learnt_tokens += (rows < 0).sum()
        step += 1
        elapsed = clock.tick()
        if elapsed >= next_report:
            tokens = step * batch_tokens
            log.append({"seconds": round(elapsed, 1), "step": step, "phase": phase, "tokens": tokens,
                        "loss": round(loss.item(), 4)})
            judge = ""
            if judge_loss is not None:
                log[-1][f"{own}_loss"] = round(judge_loss.item(), 4)
                judge = f"  {own} {judge_loss.item():.4f}"
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
        "matrix_lr": matrix_lr, "other_lr": other_lr, "batch_tokens": batch_tokens,
        "steps": step, "tokens": step * batch_tokens, "learnt_tokens": learnt_tokens.item(),
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
    parser.add_argument("--batch-rows", type=int, help="rows a step; default: the job's")
    parser.add_argument("--text-weight", type=float, help="of what is not to be learnt; default: the job's")
    parser.add_argument("--attention", choices=DOCUMENT_ATTENTION, default="flex" if torch.cuda.is_available() else None,
                        help="default: flex on a GPU; on a CPU sliced, or dense for pieces")
    parser.add_argument("--start-from", help="folder of the model of the job that this one goes on from")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--matrix-lr", type=float, help="Muon's; default: the job's")
    parser.add_argument("--other-lr", type=float, help="AdamW's; default: the job's")
    parser.add_argument("--report-every", type=float, default=10)
    parser.add_argument("--save-every", type=float, default=120)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
