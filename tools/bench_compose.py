"""What README.md and bench/RESULTS.md say of composed contexts, from `dendrite-bench compose`, `compose-quality` and vLLM's side of
the first."""
import dataclasses
from typing import Any

from bench_samples import Series, filled, number, p90, ratio, same_machine, table, times

SHAPES = [("8B", "random-8b"), ("1B", "random-1b")]
# label, row of ours, what of ours stands beside it, what of vLLM's
WORKLOADS = [
    ("{tokens:,} tokens of known chunks, first {first} of each computed", "compose", "plain", "compose"),
    ("the same again", "repeat", "known prompt", "repeat"),
    ("a quarter dropped, {behind:,} tokens behind it", "edit", "edit exact", "edit"),
    ("{siblings} siblings of {own:,} tokens joined, on {trunk:,}", "join", "join exact", "join")]
CLASSES = [("Q1", "one fact"), ("Q2", "two facts of two documents"),
           ("Q3", "a fact whose name is in the document before, said first"),
           ("Q4", "the same, said in the middle"), ("Q5", "how many documents say a word"),
           ("Q6", "a fact that a later document corrects"), ("join", "a fact of one of several continuations"),
           ("drop_unreferenced", "edit: results dropped that are not asked for"),
           ("drop_referenced", "edit: the turn dropped that has the answer"),
           ("replace_quoted", "edit: a value replaced that a note quotes"),
           ("summarize", "edit: a result cut to one value"), ("move", "edit: a visit moved")]
EDITS = {name for name, _ in CLASSES if "_" in name or name in ("summarize", "move")}
HEADLINE = """Composed context is not what computing it would give. What the shipped model of contexts answers, by class, failures included: right
answers of held-out questions, and mean KL(whole || composed), by how many first tokens of each moved document are computed (default 32):"""
POLICIES = ["first=0 last=0", "first=16 last=0", "first=32 last=0", "first=64 last=0"]


def ours_of(series: list[Series], name: str, model: str) -> list[Series]:
    """The newest of each row that begins so, of a machine on which a peer ran if there is one."""
    found: dict[str, Series] = {}
    peers = {s.machine["id"] for s in series if s.bench == "compose" and s.side.startswith("vllm") and s.model == model}
    rows = [s for s in series if s.bench == "compose" and s.side == "dendrite" and s.model == model and s.samples
            and s.unit == "ms" and (s.name == name or s.name.startswith(name + " ") and s.name[-1].isdigit())]
    rows.sort(key=lambda s: s.machine["id"] not in peers)
    for s in rows:
        found.setdefault(s.name, s)
    return list(found.values())


def workloads(series: list[Series], model: str) -> tuple[list[list[str]], list[Series]]:
    """Cells, and what they are from."""
    rows: list[list[str]] = []
    shown: list[Series] = []
    for label, name, other, theirs in WORKLOADS:
        for s in ours_of(series, name, model):
            computed = next((o for o in ours_of(series, other, model) if same_machine(o, s)), None)
            vllm = [p for p in series if p.bench == "compose" and p.side == "vllm-default" and p.model == model
                    and p.name == theirs and same_machine(p, s)]
            first = next((o for o in ours_of(series, "first use", model)
                          if name == "compose" and same_machine(o, s) and o.params == s.params), None)
            cells = [label.format(**s.params), f"{number(s.median)} ms", number(p90(s)),
                     f"{number(first.median)} ms" if first else ""]
            sides = (computed, vllm[0] if vllm else None)
            shown += [o for o in (s, first, *sides) if o]
            for o in sides:
                cells += [f"{number(o.median)} ms", times(ratio(o.samples, s.samples))] if o else ["", ""]
            rows.append(cells)
    return rows, shown


def where(shown: list[Series]) -> str:
    runs: dict[tuple[str, str, str], Series] = {}
    for s in shown:
        runs.setdefault((s.side, s.version, s.machine["id"]), s)
    return "; ".join(f"{side} {version} on `{machine}` ({s.machine['gpu']}), {s.date[:10]}"
                     for (side, version, machine), s in runs.items())


def times_all(series: list[Series], nothing: str) -> str:
    out: list[str] = []
    shown: list[Series] = []
    for name, model in SHAPES:
        rows, of = workloads(series, model)
        shown += of
        if rows:
            head = [name, "composed", "p90", "first of a process", "computed", "", "vLLM, prefix cache", ""]
            out.append(filled(head, rows, 3))
    trials = f"{min(s.trials for s in shown)} trials a row or more" if shown else ""
    return "\n\n".join([*out, f"{where(shown)}. {trials}; medians, 95 % bootstrap intervals."]) if out else nothing


@dataclasses.dataclass
class Answers:
    asked: int = 0
    right: float = 0
    kl: float = 0  # sum over questions of the mean at their answers

    def add(self, row: dict[str, Any]) -> None:
        self.asked += row["trials"]
        self.right += row["trials"] * row["median"]
        self.kl += row["trials"] * row.get("kl_mean", 0)


def answers(series: list[Series], model: str) -> dict[tuple[str, str], Answers]:
    """By class and policy; repairs alone where that is what chunks were computed behind (the system line). Edits are asked of several
    classes of questions, a run each."""
    newest: dict[tuple[str, str, str], Series] = {}
    for s in series:
        if s.bench == "compose-quality" and s.model == model and s.unit == "right" and "policy" in s.params:
            policy = s.params["policy"].removeprefix("prefix ").removeprefix("edit ")
            asked = s.command.partition("--classes ")[2].partition(" ")[0] if s.name in EDITS else ""
            newest.setdefault((s.name, policy, asked), s)
    found: dict[tuple[str, str], Answers] = {}
    for (name, policy, _), s in newest.items():
        found.setdefault((name, policy), Answers()).add(s.row)
    return found


def cell(of: Answers | None, whole: bool = False) -> str:
    if of is None:
        return ""
    right = f"{100 * of.right / of.asked:.3g} %"
    return right if whole else f"{right}, {kl(of.kl / of.asked)}"


def kl(value: float) -> str:
    return "0.0000" if value < 0.00005 else f"{value:.{4 if value < 0.1 else 2}f}"


def quality(series: list[Series], nothing: str, headline: bool) -> str:
    out = []
    for model, what in (("dendrite-compose", "Trained on whole contexts only"),
                        ("dendrite-compose-blocks", "Half of its contexts with documents that see themselves only")):
        found = answers(series, model)
        policies = POLICIES[:3] if headline else POLICIES
        rows: list[list[str]] = []
        for name, asks in CLASSES[:9] if headline else CLASSES:
            whole = found.get((name, "whole"))
            if whole is None:
                continue
            rows.append([asks, str(whole.asked), cell(whole, True), *(cell(found.get((name, p))) for p in policies)])
        if not rows:
            continue
        head = ["asked", "questions", "whole", *(p.replace("=", " ").removesuffix(" last 0") for p in policies)]
        out.append(f"{HEADLINE if headline else what + ':'}\n\n{table(head, rows)}")
        if headline:
            break
    return "\n\n".join(out) or nothing
