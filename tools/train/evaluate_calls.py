"""Measures a model of tool calls on its held-out requests and chats: what it answers greedily, exactly or not.

    python evaluate_calls.py FOLDER [--json FILE]

FOLDER has heldout.jsonl and heldout_chats.jsonl, a chat template and a tokenizer. Each text is read once, with the right
answer: greedy decoding gives that answer exactly if, at each of its tokens, the likeliest is the right one.
"""

import argparse
import collections
import json
import math
import pathlib
import re

import jinja2
import torch

import export
import tokenizer

BATCH_TOKENS = 1 << 13


def renderer(folder, as_text=False):
    """messages -> token ids, by the folder's template and tokenizer; or the text itself."""
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    special = {token["content"]: token["id"] for token in added}
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False, **options)  # transformers'
    template = environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))
    cut = re.compile("(" + "|".join(map(re.escape, special)) + ")")

    def render(messages, **variables):
        text = template.render(messages=messages, bos_token="<|bos|>", **variables)
        if as_text:
            return text
        return [token for part in cut.split(text) for token in ([special[part]] if part in special else tokenizer.encode(part))]

    return render


def rows_of(folder):
    """(class, messages, what follows) of everything that is held out."""
    def lines(name):
        return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]

    def compact(call):
        return json.dumps(call, separators=(",", ":"), ensure_ascii=False)

    for row in lines("heldout.jsonl"):
        kind = "request, made up" if row["invented"] else "request, listed"
        yield kind, [{"role": "user", "content": row["request"]}], compact(row["call"])
    for row in lines("heldout_chats.jsonl"):
        if "call" in row:
            yield "request in a chat", row["messages"], compact(row["call"])
        else:
            turns = sum(message["role"] == "user" for message in row["messages"])
            yield f"answer, {'first' if turns == 1 else 'later'} request", row["messages"], row["answer"]


@torch.no_grad()
def exact(model, prompts, answers):
    """Whether each answer, a list of ids with <|eos|>, is what greedy decoding gives after its prompt."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(answers[i]))
    out = [False] * len(prompts)
    while order:
        taken = [order.pop(0)]
        while order and (len(taken) + 1) * len(prompts[order[0]] + answers[order[0]]) <= BATCH_TOKENS:
            taken.append(order.pop(0))
        longest = max(len(prompts[i]) + len(answers[i]) for i in taken)
        rows = [prompts[i] + answers[i] for i in taken]
        tokens = torch.tensor([row + [tokenizer.PAD] * (longest - len(row)) for row in rows],
                              device=model.embedding.device)
        likeliest = model.logits(model(tokens)).argmax(dim=-1).tolist()
        for i, row in zip(taken, likeliest):
            begin = len(prompts[i]) - 1
            out[i] = row[begin:begin + len(answers[i])] == answers[i]
    return out


def interval(right, count):
    """Wilson's, of 95 %."""
    z, share = 1.96, right / count
    middle = share + z * z / (2 * count)
    wide = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [round((middle + sign * wide) / (1 + z * z / count), 4) for sign in (-1, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    model = export.load(args.folder, device=args.device)
    render = renderer(args.folder)
    kinds, chats, answers = zip(*rows_of(args.folder))
    right = exact(model, [render(chat) for chat in chats],
                  [tokenizer.encode(answer) + [tokenizer.EOS] for answer in answers])
    report = {}
    for kind, count in collections.Counter(kinds).items():
        exactly = sum(ok for ok, of in zip(right, kinds) if of == kind)
        report[kind] = {"count": count, "exact": exactly, "wilson_95": interval(exactly, count)}
        print(f"{kind:24} {exactly:4} of {count:4} exact  {report[kind]['wilson_95']}", flush=True)
    for ok, chat, answer in zip(right, chats, answers):
        if not ok:
            print("not exact:", json.dumps({"last": chat[-1]["content"], "expected": answer}, ensure_ascii=False))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
