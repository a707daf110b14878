"""What bench/RESULTS.md says of agents at once, from raw samples of `dendrite-bench agents`."""
from typing import Any

from bench_samples import Interval, Series, find, number, ratio, table, times

MODELS = {"random-8b": "8B", "random-1b": "1B", "random-135m": "135M", "dendrite-24": "shipped"}


def where(s: Series) -> str:
    machine = s.machine
    return f"{MODELS.get(s.model, s.model)}, {machine['gpu'] if s.device == 'cuda' else 'CPU'}"


def ran(shown: list[Series]) -> str:
    runs = {s.command: s for s in shown}
    return "\n\n".join(f"Commit {s.version}, {s.date[:10]}: `{command}`." for command, s in sorted(runs.items()))


def labelled(s: Series) -> str:
    params = s.params
    if params["work"] == "callers":
        return f"{params['agents']} callers, a branch each"
    agents = params["agents"]
    return f"{agents} ToT agent{'s' if agents > 1 else ''}, thoughts of {params['length']}"


def other(series: list[Series], s: Series, name: str) -> Series | None:
    return find(series, "agents", name, "dendrite", s.model, s.device, **s.params)


def gain(series: list[Series], s: Series, mode: str) -> str:
    """Of all agents at once over a mode that was measured in the same run, or in one of another commit."""
    found = [t for t in series if t.bench == "agents" and t.name == mode and t.path == s.path and t.model == s.model
             and t.device == s.device and t.params == s.params]
    if not found:
        return ""
    same = [t for t in series if t.name == "joined" and t.command == found[0].command and t.date == found[0].date
            and t.params == s.params]
    over: Interval = ratio(found[0].samples, (same[0] if same else s).samples)
    return times(over)


def spread(series: list[Series], s: Series, name: str) -> str:
    row = other(series, s, name)
    return f"{number(row.median)}, {number(row.row['p99'])}" if row else ""


def agents(series: list[Series], nothing: str) -> str:
    shown: dict[str, Series] = {}
    for s in series:
        if s.bench == "agents" and s.name == "joined":
            key: Any = (s.device, s.model, str(s.params))
            wider = any(t.command == s.command and t.name == "turns" and t.params == s.params for t in series)
            if str(key) not in shown or (wider and not gain(series, shown[str(key)], "turns")):
                shown[str(key)] = s
    if not shown:
        return nothing
    rows = sorted(shown.values(), key=lambda s: (s.device != "cuda", s.model, s.params["work"], s.params["length"],
                                                 s.params["agents"]))
    cells = []
    for s in rows:
        allowed = other(series, s, "rows_allow")
        cells.append([where(s), labelled(s), f"{number(s.median)} s", gain(series, s, "turns"),
                      f"{number(allowed.row['median'])}x" if allowed else "", gain(series, s, "processes"),
                      spread(series, s, "joined, first token"), spread(series, s, "joined, gap")])
    head = ["", "agents", "all have ended", "gain over turns", "rows allow", "over processes", "first token, ms: median, p99",
            "gap, ms: median, p99"]
    return table(head, cells) + "\n\n" + ran(rows)


def beside(series: list[Series], nothing: str) -> str:
    """A long prompt beside branches that decode, by what a step may take."""
    shown: dict[str, Series] = {}
    for s in series:
        if s.bench == "agents" and s.name == "prefill, beside others":
            shown.setdefault(s.device + s.model + str(s.params), s)
    if not shown:
        return nothing

    def target(s: Series) -> float:
        return float("inf") if s.params["target_ms"] == "none" else float(s.params["target_ms"])

    cells = []
    rows = sorted(shown.values(), key=lambda s: (s.device != "cuda", s.model, s.params["prompt_length"], -target(s)))
    for s in rows:
        alone, steps = other(series, s, "prefill, alone"), other(series, s, "rows of a step")
        gap, longest = other(series, s, "gap of others, beside"), other(series, s, "longest gap of a trial")
        if not (alone and steps and gap and longest):
            continue
        limit = "no limit" if s.params["target_ms"] == "none" else f"{target(s):g} ms"
        cells.append([where(s), f"{s.params['prompt_length']:,} beside {s.params['others']}", limit,
                      f"{number(steps.median)}", f"{number(s.median)} ms", times(ratio(s.samples, alone.samples)),
                      f"{number(gap.median)}, {number(gap.row['p99'])}", f"{number(longest.row['p99'])}"])
    head = ["", "tokens", "target", "rows a step", "prefill", "of alone", "others' gaps, ms: median, p99", "longest, ms"]
    return table(head, cells) + "\n\n" + ran(rows)
