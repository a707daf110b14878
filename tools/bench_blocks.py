"""What README.md and bench/RESULTS.md say between `<!-- bench:NAME -->` and `<!-- /bench -->`, from raw samples."""
from typing import Any, Callable, Iterable

import bench_agents
import bench_compose
import bench_decoding
from bench_samples import (RESULTS, Interval, Series, filled, find, median_interval, number, p90, partner, ratio, table,
                           times, wilson)

STEPS = [(1, 512), (8, 4096), (32, 4096), (128, 4096), (16, 8192), (32, 32768)]
SEARCH_A = {"depth": 5, "branch": 4, "keep": 4}
SEARCH_B = {"depth": 10, "branch": 5, "keep": 5}
SHAPES = [("8B", "random-8b"), ("1B", "random-1b")]
HYBRIDS = [("Qwen3.5-9B", "random-qwen3.5-9b"), ("Qwen3.5-27B", "random-qwen3.5-27b")]
MODES = [("vLLM", "vllm-default"), ("vLLM, cascade", "vllm-cascade")]
NAMES = {"dendrite": "Dendrite", "vllm-default": "vLLM, default mode,", "vllm-cascade": "vLLM, cascade mode,"}
SETS = [("Game of 24", "game24_heldout"), ("Countdown, 4 numbers", "countdown4_heldout"),
        ("Countdown, 5 numbers", "countdown5_heldout")]
CHARTED = [("steps", "branch"), ("searches", "search")]  # charts beside vLLM, of the rows whose label has the word
NOTHING = "Not measured with samples that were kept; bench/history/ has earlier numbers."
STRATEGIES = {"greedy": "greedy decoding", "best-of-n": "best of {} samples, exact checker",
              "beam": "beam search, {} kept", "tot": "Tree-of-Thoughts, {} kept a depth",
              "depth-first": "depth-first, {} children", "best-first": "best-first, {} at once",
              "mcts": "MCTS, {} rollouts"}

Workload = tuple[str, str, str, dict[str, Any]]  # label, bench, row, parameters


def step(branches: int, prefix: int) -> Workload:
    label = f"1 branch on {prefix} tokens" if branches == 1 else f"{branches} branches on {prefix} shared tokens"
    return label, "decode", "step", {"branches": branches, "prompt_length": prefix}


def search(shape: dict[str, int]) -> Workload:
    return (f"search: depth {shape['depth']}, {shape['branch']} children, {shape['keep']} kept, with a judge",
            "tree-vs-linear", "tree", {**shape, "prompt_length": 1024})


HEADLINE = [step(1, 512), step(32, 4096), step(128, 4096), search(SEARCH_A)]
ALL = [step(*s) for s in STEPS] + [
    search(SEARCH_A), search(SEARCH_B),
    ("log-probs: 64 continuations of 16 after 2048", "score", "prompt and trie",
     {"prompt_length": 2048, "continuations": 64, "length": 16}),
    ("4096 tokens to the first token", "decode", "ttft", {"prompt_length": 4096})]


def on_gpu(series: list[Series], workload: Workload, model: str) -> Series | None:
    """The newest beside which both modes of vLLM ran: the better one of them is known."""
    _, bench, name, params = workload
    for s in series:
        if (s.bench == bench and s.name == name and s.side == "dendrite" and (s.model, s.device) == (model, "cuda")
                and all(s.params.get(key) == value for key, value in params.items())
                and all(partner(series, s, side) for _, side in MODES)):
            return s
    return None


def value(s: Series) -> str:
    return f"{number(s.median)} {s.unit}"


def sources(shown: Iterable[Series]) -> str:
    """Which sides of which versions were measured where, and how many trials."""
    sides: dict[tuple[str, str, str], Series] = {}
    machines: dict[str, Series] = {}
    trials = set()
    for s in shown:
        engine = NAMES.get(s.side, s.side.split(", ")[0])
        sides.setdefault((engine, s.version, s.machine["id"]), s)
        machines.setdefault(s.machine["id"], s)
        trials.add(len(s.samples))
    if not sides:
        return NOTHING
    who = "; ".join(f"{f'{engine} {version}'.strip()} on `{machine}`, {s.date[:10]}"
                    for (engine, version, machine), s in sides.items())
    where = "; ".join(f"`{name}`: {hardware(s)}" for name, s in machines.items())
    count = f"{min(trials)}" if len(trials) == 1 else f"{min(trials)} to {max(trials)}"
    kind = "One machine" if len(machines) == 1 else f"{len(machines)} machines"
    return f"{who}. {kind}: {where}. {count} trials a row; medians, 95 % bootstrap intervals."


def hardware(s: Series) -> str:
    cpu = f"{s.machine['cores']} cores of {s.machine['cpu']}"
    return f"{s.machine['gpu']}, driver {s.machine['driver']}, {cpu}" if s.device == "cuda" else cpu


def better_mode(series: list[Series], ours: Series) -> Series | None:
    found = [theirs for _, side in MODES if (theirs := partner(series, ours, side))]
    return min(found, key=lambda theirs: theirs.median, default=None)


def vllm_headline(series: list[Series]) -> str:
    rows, shown = [], []
    for workload in HEADLINE:
        cells = [workload[0]]
        for _, model in SHAPES:
            ours = on_gpu(series, workload, model)
            theirs = better_mode(series, ours) if ours else None
            shown += [s for s in (ours, theirs) if s]
            cells += [value(ours) if ours else "", value(theirs) if theirs else "",
                      times(ratio(theirs.samples, ours.samples)) if ours and theirs else ""]
        rows.append(cells)
    head = [""] + [cell for name, _ in SHAPES for cell in (name, "vLLM", "ratio")]
    return "\n\n".join([
        "Random weights of an 8B and a 1B shape on a GPU, beside the better of vLLM's default and cascade modes, which is bound by\n"
        "its host at 1B. Dendrite in its deterministic mode; a step, sampling included, or a whole search:",
        table(head, rows), sources(shown)]) if shown else ""


def vllm_all(series: list[Series]) -> str:
    out = []
    for name, model in SHAPES:
        rows, shown = [], []
        for workload in ALL:
            ours = on_gpu(series, workload, model)
            if ours is None:
                continue
            modes = [partner(series, ours, side) for _, side in MODES]
            best = better_mode(series, ours)
            shown += [s for s in (ours, *modes) if s]
            rows.append([workload[0], value(ours), number(p90(ours)), *(value(s) if s else "" for s in modes),
                         times(ratio(best.samples, ours.samples)) if best else ""])
        if rows:
            head = ["", "Dendrite", "p90", *(mode for mode, _ in MODES), "better mode / Dendrite"]
            charts = [f"![{name}: {what} beside vLLM](../docs/bench/vllm-{name.lower()}-{what}.svg)"
                      for what, kind in CHARTED if any(kind in row[0] for row in rows)]
            out.append("\n\n".join([f"{name}:", table(head, rows), sources(shown), *charts]))
    return "\n\n".join(out) or NOTHING


def vllm_hybrids(series: list[Series]) -> str:
    rows, shown = [], []
    for name, model in HYBRIDS:
        for label, bench, row, params in [*(step(branches, 4096) for branches in (1, 16, 64)), ALL[-1]]:
            ours = find(series, bench, row, side="dendrite", model=model, **params)
            theirs = partner(series, ours, MODES[0][1]) if ours else None
            if ours is None or theirs is None:
                continue
            shown += [ours, theirs]
            rows.append([f"{name}, {label}", value(ours), number(p90(ours)), value(theirs),
                         times(ratio(theirs.samples, ours.samples))])
    return "\n\n".join([table(["", "Dendrite", "p90", "vLLM", "vLLM / Dendrite"], rows),
                        sources(shown)]) if shown else NOTHING


def solved(series: list[Series], puzzles: str) -> list[Series]:
    """One row a strategy and width, in the order of STRATEGIES."""
    found: dict[tuple[str, int], Series] = {}
    for s in series:
        if s.bench == "game24" and s.unit == "solved" and s.params.get("set") == puzzles:
            found.setdefault((s.name, s.params.get("width", 0)), s)
    return [found[key] for key in sorted(found, key=lambda key: (list(STRATEGIES).index(key[0]), key[1]))]


def strategy(s: Series) -> str:
    return STRATEGIES[s.name].format(s.params.get("width"))


def share(s: Series) -> str:
    interval = wilson(s.row["solved"], s.row["solvable"])
    return f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def tokens(s: Series, key: str) -> str:
    return f"{s.row[key] / s.row['solvable']:,.0f}"


def seconds(series: list[Series], s: Series) -> Series | None:
    return find(series, "game24", s.name + " time", "dendrite", s.model, s.device, **s.params)


def ran(s: Series) -> str:
    return f"Commit {s.version}, {s.date[:10]}, {hardware(s)}: `{s.command}`."


def game24_headline(series: list[Series]) -> str:
    wanted = [("greedy", None), ("best-of-n", 32), ("tot", 1), ("tot", 3)]
    rows = [s for s in solved(series, SETS[0][1]) if (s.name, s.params.get("width")) in wanted]
    if not rows:
        return ""
    head = [f"{rows[0].row['solvable']} held-out puzzles", "solved", "tokens computed a puzzle",
            "as independent prompts"]
    cells = [[strategy(s), share(s), tokens(s, "tokens_computed"), tokens(s, "tokens_independent")] for s in rows]
    return "\n\n".join([
        'Held-out games of 24 on the shipped model, Wilson 95 % intervals. "Independent" is what the same requests compute\n'
        "when nothing is shared:", table(head, cells), ran(rows[0]),
        "What a strategy solves for its time and its tokens, with widths as numbers:", game24_chart("docs")])


def game24_chart(folder: str) -> str:
    return f"![solved puzzles against seconds and tokens]({folder}/game24.svg)"


def game24_all(series: list[Series]) -> str:
    out = []
    for title, puzzles in SETS:
        rows = solved(series, puzzles)
        if not rows:
            continue
        cells = []
        for s in rows:
            clock = seconds(series, s)
            cells.append([strategy(s), f"{s.row['solved']} of {s.row['solvable']}", share(s),
                          tokens(s, "tokens_computed"), tokens(s, "tokens_independent"),
                          number(clock.median) if clock else ""])
        head = [title, "solved", "", "tokens computed", "as independent prompts", "s, median"]
        out.append(table(head, cells) + "\n\n" + ran(rows[0]))
    return "\n\n".join([*out, game24_chart("../docs")]) if out else NOTHING


def forks(series: list[Series]) -> list[Series]:
    found: dict[str, Series] = {}
    for s in series:
        if s.bench == "fork-overhead" and s.name == "fork" and s.device == "cpu":
            found.setdefault(str(s.params), s)
    return [s for s in found.values() if s.date == next(iter(found.values())).date]


def fork_headline(series: list[Series]) -> str:
    rows = forks(series)
    if not rows:
        return ""
    ns = [s.median for s in rows]
    lengths = [s.params["tokens"] for s in rows if s.params["depth"] == 1]
    depths = [s.params["depth"] for s in rows]
    searching = [number(s.median) for name in IN_A_SEARCH if (s := of_run(series, rows[0], name))]
    behind = (f" As a tree search makes them, 8 branches into 4 each behind a step, which used the caches: {searching[0]} ns a "
              f"fork, {searching[1]} ns of those made first." if len(searching) == 2 else "")
    return (f"A fork of a complete branch, with hot caches: {number(min(ns))} to {number(max(ns))} ns, from {min(lengths):,} to "
            f"{max(lengths):,} tokens and from depth {min(depths):,} to {max(depths):,} ({hardware(rows[0])}).{behind}")


IN_A_SEARCH = ("fork in a search", "fork in a search, first after a step")


def of_run(series: list[Series], of: Series, name: str) -> Series | None:
    """A row of the run of `of`."""
    return next((s for s in series if (s.bench, s.name, s.date, s.command) == (of.bench, name, of.date, of.command)), None)


def in_a_search(series: list[Series], of: Series) -> list[str]:
    """What forks take behind a step, as the bench times them and as Stats::fork_ns says of the same session."""
    every, first = (of_run(series, of, name) for name in IN_A_SEARCH)
    told = of_run(series, of, "fork in a search, Stats::fork_ns")
    if not (every and first and told):
        return []
    cells = [f"{every.params['branches']} branches into {every.params['children']} each", interval_text(median_interval(every.samples)),
             interval_text(median_interval(first.samples)), number(told.row["median"])]
    return [table(["behind a step", "a fork, ns", "those made first", "Stats::fork_ns, median"], [cells])]


def fork_all(series: list[Series]) -> str:
    rows = forks(series)
    if not rows:
        return NOTHING
    cells = []
    for s in rows:
        cells.append([f"{s.params['tokens']:,}", f"{s.params['depth']:,}"])
        for name in ("fork", "fork+drop", "fork single, cold"):
            found = find(series, s.bench, name, s.side, s.model, s.device, **s.params)
            cells[-1].append(interval_text(median_interval(found.samples)) if found else "")
    head = ["tokens", "depth", "fork, ns", "fork and drop", "one, after other work"]
    return "\n\n".join([table(head, cells), *in_a_search(series, rows[0]), *rewinds(series, rows[0]), ran(rows[0])])


def rewinds(series: list[Series], of: Series) -> list[str]:
    """Forks from the past, `Branch::at`, as measured in the run of `of`."""
    names = ("rewind, last page", "rewind, middle")
    lengths = [s.params["tokens"] for s in series if s.bench == of.bench and s.name == names[0] and s.date == of.date]
    if not lengths:
        return []
    cells = []
    for length in lengths:
        found = [find(series, of.bench, name, of.side, of.model, of.device, tokens=length) for name in names]
        cells.append([f"{length:,}", *(interval_text(median_interval(s.samples)) if s else "" for s in found)])
    return [table(["tokens", "rewind within the last page, ns", "to the middle"], cells)]


def interval_text(interval: Interval) -> str:
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def tree_searches(series: list[Series]) -> list[Series]:
    """Trees on a CPU beside which the same engine ran without sharing, or a peer."""
    found: dict[str, Series] = {}
    for s in series:
        if s.bench in ("tree-vs-linear", "mcts") and s.name == "tree" and s.device == "cpu" and s.side == "dendrite":
            found.setdefault(f"{s.bench} {s.model} {s.setup['kernels']} {s.params}", s)
    return list(found.values())


def search_label(s: Series) -> str:
    if s.bench == "mcts":
        return "MCTS: {expansions} expansions, {rollouts} rollouts of {rollout_length}, after {prompt_length}".format(
            **s.params)
    p = s.params
    return f"depth {p['depth']}, {p['branch']} children of {p['length']}, {p['keep']} kept, after {p['prompt_length']}"


def tree_rivals(series: list[Series], s: Series) -> dict[str, Series | None]:
    same = dict(model=s.model, device=s.device, **s.params)
    series = [other for other in series if other.date == s.date]
    return {"radix cache": find(series, s.bench, "radix", "dendrite", **same),
            "block cache": find(series, s.bench, "block", "dendrite", **same),
            "every path again": find(series, s.bench, "reprefill", "dendrite", **same),
            "llama.cpp": partner(series, s, "llama.cpp")}


def searches_headline(series: list[Series]) -> str:
    ranges = []
    for name, text in [("radix cache", "with a radix prefix cache in the same engine"),
                       ("block cache", "with a cache of whole pages"),
                       ("every path again", "with re-prefilling"), ("llama.cpp", "with llama.cpp's sequence copies")]:
        found = sorted((ratio(rival.samples, s.samples) for s in tree_searches(series)
                        if (rival := tree_rivals(series, s)[name])), key=lambda of: of.value)
        if found:
            span = interval_text(found[0]) if len(found) == 1 else f"{number(found[0].value)} to {number(found[-1].value)}"
            ranges.append(f"{span} times as long {text}")
    return ("Beside a tree, whole searches on a CPU take " + ", ".join(ranges)
            + ". Within one engine, what a tree gains is what the others compute again, not more.") if ranges else ""


def searches_all(series: list[Series]) -> str:
    names = ["radix cache", "block cache", "every path again", "llama.cpp"]
    rows, shown = [], []
    for s in tree_searches(series):
        rivals = tree_rivals(series, s)
        shown += [s, *(rival for rival in rivals.values() if rival)]
        rows.append([search_label(s), s.model, s.setup["kernels"], value(s),
                     *(times(ratio(rivals[n].samples, s.samples)) if rivals[n] else "" for n in names)])
    chart = "![time over Dendrite's tree](../docs/bench/searches.svg)"
    head = ["tree", "model", "kernels", "Dendrite", *names]
    return "\n\n".join([filled(head, rows, 4), sources(shown), chart]) if rows else NOTHING


def attention(series: list[Series]) -> list[tuple[Series, dict[str, Series]]]:
    """Trees of the FlashInfer bench, each with its better flat and its better cascade way."""
    found: dict[str, Series] = {}
    for s in series:
        if s.bench == "flashinfer" and s.name == "tree" and s.side == "dendrite":
            found.setdefault(s.params["case"], s)
    out = []
    for ours in found.values():
        theirs = [s for s in series
                  if s.side.startswith("flashinfer") and (s.date, s.params) == (ours.date, ours.params)]
        ways = {}
        for kind in ("flat", "cascade"):
            if found_ways := [s for s in theirs if f", {kind}" in s.side]:
                ways[f"FlashInfer, {kind}"] = min(found_ways, key=lambda s: s.median)
        out.append((ours, ways))
    return out


def attention_all(series: list[Series]) -> str:
    rows, shown = [], []
    for ours, ways in attention(series):
        shown += [ours, *ways.values()]
        rows.append([ours.params["case"], value(ours)])
        for kind in ("FlashInfer, flat", "FlashInfer, cascade"):
            way = ways.get(kind)
            rows[-1] += [value(way), times(ratio(way.samples, ours.samples))] if way else ["", ""]
    head = ["branches x shared + own", "tree", "flat", "flat / tree", "cascade", "cascade / tree"]
    chart = "![FlashInfer's time over Dendrite's](../docs/bench/flashinfer.svg)"
    return "\n\n".join([table(head, rows), sources(shown), chart]) if rows else NOTHING


def llama_rows(series: list[Series]) -> list[tuple[Series, Series]]:
    found: dict[str, tuple[Series, Series]] = {}
    for s in series:
        if s.bench == "decode" and s.name == "step" and s.device == "cpu" and s.side == "dendrite":
            theirs = partner(series, s, "llama.cpp")
            if theirs:
                found.setdefault(f"{s.model} {theirs.side} {s.setup} {s.params}", (s, theirs))
    return list(found.values())


def llama_headline(series: list[Series]) -> str:
    """Of each shape and prompt, the row with the most branches."""
    most: dict[str, tuple[Series, Series]] = {}
    for ours, theirs in llama_rows(series):
        key = f"{ours.model} {ours.setup['kernels']} {ours.setup['threads']} {ours.params['prompt_length']}"
        if key not in most or ours.params["branches"] > most[key][0].params["branches"]:
            most[key] = (ours, theirs)
    rows = []
    for ours, theirs in most.values():
        if ours.params["branches"] > 1:
            rows.append([f"{ours.params['branches']} branches on {ours.params['prompt_length']} shared tokens, {ours.model}",
                         ours.setup["kernels"], str(ours.setup["threads"]), value(ours), value(theirs),
                         times(ratio(theirs.samples, ours.samples))])
    head = ["a step on a CPU", "kernels", "cores", "Dendrite", "llama.cpp", "ratio"]
    if not rows:
        return ""
    return (table(head, rows) + "\n\n`avx2`: both sides built for AVX2 alone, as on a CPU without AMX, measured on the same "
            "machine.")


def llama_all(series: list[Series]) -> str:
    rows, shown = [], []
    for ours, theirs in llama_rows(series):
        shown += [ours, theirs]
        rows.append([ours.model, ours.setup["kernels"], str(ours.setup["threads"]), str(ours.params["prompt_length"]),
                     str(ours.params["branches"]), value(ours),
                     value(theirs), times(ratio(theirs.samples, ours.samples))])
    head = ["shape", "kernels", "threads", "shared tokens", "branches", "Dendrite", "llama.cpp", "ratio"]
    return table(head, rows) + "\n\n" + sources(shown) if rows else NOTHING


def history(_: list[Series]) -> str:
    pages = sorted((RESULTS.parent / "history").glob("*.md"), reverse=True)
    return "\n".join(f"- [{page.stem}](history/{page.name})" for page in pages)


BLOCKS: dict[str, Callable[[list[Series]], str]] = {
    "vllm-headline": vllm_headline, "vllm": vllm_all, "vllm-hybrids": vllm_hybrids, "game24-headline": game24_headline, "game24": game24_all,
    "fork-headline": fork_headline, "fork": fork_all, "searches-headline": searches_headline, "searches": searches_all,
    "agents": lambda series: bench_agents.agents(series, NOTHING),
    "prefill-beside": lambda series: bench_agents.beside(series, NOTHING),
    "sweep": lambda series: bench_decoding.sweep(series, NOTHING),
    "constraint-headline": lambda series: bench_decoding.constraint_headline(series),
    "constraint": lambda series: bench_decoding.constraint(series, NOTHING),
    "speculation-headline": lambda series: bench_decoding.speculation_headline(series),
    "speculation": lambda series: bench_decoding.speculation(series, NOTHING),
    "compose": lambda series: bench_compose.times_all(series, NOTHING),
    "compose-quality": lambda series: bench_compose.quality(series, NOTHING, headline=False),
    "compose-quality-headline": lambda series: bench_compose.quality(series, "", headline=True),
    "flashinfer": attention_all, "llama.cpp": llama_all, "llama.cpp-headline": llama_headline, "history": history}
