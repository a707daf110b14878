"""What README.md and bench/RESULTS.md say of decoding on a GPU: by how many branches, under constraints, with drafts."""
from bench_samples import Interval, Series, median_interval, number, p90, ratio, table, times

SHAPES = [("8B", "random-8b"), ("1B", "random-1b")]
TEXTS = {"again": "what the session has said before", "sampled": "what it has not said", "astray": "nothing to draft"}
DRAFTERS = {"suffix": "its own texts", "oracle-chain": "an oracle, a chain", "oracle-tree": "an oracle, a tree"}


def newest(series: list[Series], bench: str, name: str, model: str) -> list[Series]:
    """Rows of that name in the newest run on a GPU that has them."""
    rows = [s for s in series if (s.bench, s.name, s.side) == (bench, name, "dendrite")
            and (s.model, s.device) == (model, "cuda")]
    return [s for s in rows if (s.date, s.command) == (rows[0].date, rows[0].command)]


def beside(series: list[Series], s: Series, name: str) -> Series | None:
    """Another row of the same run and parameters."""
    return next((o for o in series if (o.bench, o.name, o.model, o.date, o.command, o.params)
                 == (s.bench, name, s.model, s.date, s.command, s.params)), None)


def ran(rows: list[Series]) -> str:
    runs = {(s.model, s.date, s.command): s for s in rows}
    return "\n\n".join(f"Commit {s.version}, {s.date[:10]}, `{s.machine['id']}` ({s.machine['gpu']}), {s.trials} trials a row: "
                       f"`{s.command}`.{memory(s)}" for s in runs.values())


def memory(s: Series) -> str:
    """What the run had in use when it ended."""
    end = s.conditions[-1] if s.conditions else {}
    return f" {end['gpu_mib'] / 1024:.1f} GiB of the GPU's memory at its end." if end.get("gpu_mib") else ""


def gigabytes(value: float) -> str:
    return f"{number(value)} GB"


def steps(series: list[Series], rows: list[Series]) -> str:
    cells = []
    for s in rows:
        rate, held = beside(series, s, "decode"), beside(series, s, "memory a branch")
        assert held
        cells.append([str(s.params["branches"]), f"{number(s.median)} ms", number(p90(s)), number(rate.median) if rate else "",
                      gigabytes(held.row["median"]), gigabytes(held.row["alone"]), f"{100 * held.row['saved']:.1f} %"])
    head = [f"branches on {rows[0].params['prompt_length']:,} shared tokens", "a step", "p90", "tokens a second", "K and V a branch",
            "of one alone", "saved"]
    return table(head, cells)


def searches(rows: list[Series]) -> str:
    cells = []
    for s in rows:
        p = s.params
        what = f"a chain of {p['depth']}" if p["branch"] == 1 else f"depth {p['depth']}, {p['branch']} children, {p['keep']} kept"
        cells.append([f"{what}, thoughts of {p['length']}", interval(median_interval(s.samples)), number(p90(s))])
    return table(["search, with a judge", "s", "p90"], cells)


def interval(of: Interval) -> str:
    return f"{number(of.value)} [{number(of.low)}, {number(of.high)}]"


def sweep(series: list[Series], nothing: str) -> str:
    """The run of decode with the most rows, of those that say what a branch holds, and a search beside a chain of its depth."""
    out = []
    for name, model in SHAPES:
        runs: dict[tuple[str, str], list[Series]] = {}
        for s in series:
            if (s.bench, s.name, s.side, s.model, s.device) == ("decode", "step", "dendrite", model, "cuda") and beside(
                    series, s, "memory a branch"):
                runs.setdefault((s.date, s.command), []).append(s)
        if not runs:
            continue
        rows = max(runs.values(), key=len)
        chains = [s for s in series if (s.bench, s.name, s.side, s.model, s.device)
                  == ("tree-vs-linear", "tree", "dendrite", model, "cuda") and s.params["branch"] == 1]
        trees = [s for s in series if chains and (s.bench, s.name, s.side, s.version, s.machine["id"], s.model)
                 == ("tree-vs-linear", "tree", "dendrite", chains[0].version, chains[0].machine["id"], model)
                 and s.params["branch"] > 1 and alike(s, chains[0])]
        parts = [f"{name}:", steps(series, rows)]
        if trees:
            parts.append(searches([chains[0], trees[0]]))
        out += [*parts, ran([*rows, *([chains[0], trees[0]] if trees else [])])]
    return "\n\n".join(out) or nothing


def alike(tree: Series, chain: Series) -> bool:
    """Whether they differ in width only."""
    return all(tree.params.get(key) == value for key, value in chain.params.items() if key not in ("branch", "keep"))


def constraint(series: list[Series], nothing: str, models: list[tuple[str, str]] = SHAPES) -> str:
    """Decoding under a constraint by decoding without, in turns in one run."""
    cells, shown = [], []
    branches: list[int] = []
    for name, model in models:
        rows = newest(series, "constraint", "token, constrained", model)
        branches = branches or sorted({s.params["branches"] for s in rows})
        for text in dict.fromkeys(s.params["constraint"] for s in rows):
            cells.append([f"{name} shape, {text}"])
            for count in branches:
                s = next((s for s in rows if (s.params["constraint"], s.params["branches"]) == (text, count)), None)
                free = beside(series, s, "token, unconstrained") if s else None
                cells[-1].append(times(ratio(s.samples, free.samples)) if s and free else "")
        shown += rows[:1]
    if not shown:
        return nothing
    head = ["times as long as without", *(f"{count} branch{'es' if count > 1 else ''}" for count in branches)]
    return f"{table(head, cells)}\n\n{ran(shown)}"


def constraint_headline(series: list[Series]) -> str:
    """Of the largest model that was measured."""
    tables = (constraint(series, "", models=[shape]) for shape in SHAPES)
    return next((table for table in tables if table), "")


def speedups(series: list[Series], models: list[tuple[str, str]]) -> tuple[list[str], list[list[str]], list[Series]]:
    cells, shown = [], []
    branches: list[int] = []
    for name, model in models:
        rows = newest(series, "speculate", "speedup", model)
        branches = branches or sorted({s.params["branches"] for s in rows})
        kinds = dict.fromkeys((s.params["text"], s.params["mode"], s.params.get("right")) for s in rows)
        for text, mode, right in kinds:
            of = {s.params["branches"]: s for s in rows
                  if (s.params["text"], s.params["mode"], s.params.get("right")) == (text, mode, right)}
            drafter = DRAFTERS.get(mode, mode) + (f" that is right {100 * right:.0f} times in 100" if right else "")
            cells.append([f"{name} shape, {TEXTS.get(text, text)}", drafter,
                          *(times(median_interval(of[count].samples)) if count in of else "" for count in branches)])
        shown += rows[:1]
    head = ["times as fast as without", "drafts from", *(f"{count} branch{'es' if count > 1 else ''}" for count in branches)]
    return head, cells, shown


def slower(series: list[Series], shown: list[Series]) -> str:
    """Cases that lost, of the runs that are shown."""
    rows = [s for s in series if s.name == "slower than plain by 2 %" and any(
        (s.model, s.date, s.command) == (o.model, o.date, o.command) for o in shown)]
    if not rows:
        return ""
    lost, of = sum(s.row["median"] for s in rows), sum(s.row["of"] for s in rows)
    return f"More than 2 % slower than without: {lost:.0f} of {of:.0f} cases.\n\n"


def speculation(series: list[Series], nothing: str) -> str:
    head, cells, shown = speedups(series, SHAPES)
    return f"{table(head, cells)}\n\n{slower(series, shown)}{ran(shown)}" if shown else nothing


def speculation_headline(series: list[Series]) -> str:
    head, cells, shown = speedups(series, SHAPES[:1])
    return f"{table(head, cells)}\n\n{slower(series, shown)}{ran(shown)}" if shown else ""
