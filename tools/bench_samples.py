"""Raw samples of bench/results/*.jsonl (bench/results/README.md): reading, choosing, ratios with intervals."""
import dataclasses
import functools
import json
import math
import pathlib
import random
import statistics
from typing import Any, Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
SCHEMA = 1
LEAST_TRIALS = 16  # of what pages show
RESAMPLES = 4000
SEED = 20260101


@dataclasses.dataclass(frozen=True)
class Series:
    """The samples of one row: one a trial, or none where `row` is a count or a share."""
    bench: str
    name: str
    params: dict[str, Any]
    unit: str
    samples: list[float]
    side: str  # "dendrite", "dendrite-fast", "vllm-default", "llama.cpp v0.5.0-native", ...
    version: str  # for people; empty where `side` has it
    commit: str  # of ours, by which the run was made; empty where it was another engine's alone
    setup: dict[str, Any]  # device, kernels, threads
    model: str
    machine: dict[str, Any]
    date: str
    command: str
    path: str
    conditions: list[dict[str, Any]]  # before and after the run
    row: dict[str, Any]

    @property
    def trials(self) -> int:
        """1 where it was counted."""
        return len(self.samples) or self.row.get("trials", 1)

    @property
    def is_shown(self) -> bool:
        """Whether there are enough trials for a page to say it."""
        return self.trials >= LEAST_TRIALS or not self.samples and self.trials == 1

    @property
    def device(self) -> str:
        return self.setup.get("kind", "cpu")

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclasses.dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


def read(folder: pathlib.Path = RESULTS) -> list[Series]:
    """All rows, newest run first, so that the first one found is the one to show."""
    runs = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            run = json.loads(line)
            if run.get("schema") != SCHEMA:
                raise SystemExit(f"{path}:{number}: schema is {run.get('schema')}; expected {SCHEMA}")
            runs.append((run, path.name))
    runs.sort(key=lambda run: run[0]["date"], reverse=True)
    return [series for run, name in runs for series in rows_of(run, name)]


def rows_of(run: dict[str, Any], path: str) -> Iterable[Series]:
    for row in run["rows"] + run["peers"]:
        yield Series(bench=row.get("bench", run["bench"]), name=row["name"], params=row["params"], unit=row["unit"],
                     samples=row.get("samples", []), side=row.get("peer", run["side"]).split(" |")[0],
                     version="" if "peer" in row else told_version(run),
                     commit=run["version"] if run["side"].startswith("dendrite") else "", setup=run["device"],
                     model=run["model"], machine=run["machine"], date=run["date"], command=run["command"], path=path,
                     conditions=run.get("conditions", []), row=row)


def told_version(run: dict[str, Any]) -> str:
    """With how it is known, where the build said something else."""
    return run["version"] + (" (by the hash of its tree)" if "built_as" in run else "")


def find(series: Iterable[Series], bench: str, name: str, side: str, model: str | None = None,
         device: str | None = None, **params: Any) -> Series | None:
    """The newest row of that name whose side begins with `side` and which has these parameters."""
    for s in series:
        if (s.bench == bench and s.name == name and s.side.startswith(side) and model in (None, s.model)
                and device in (None, s.device) and all(s.params.get(key) == value for key, value in params.items())):
            return s
    return None


def partner(series: Iterable[Series], ours: Series, side: str) -> Series | None:
    """The row of another side that stands beside `ours`: the same workload, device kind, model and machine. One of the
    same run is taken before a newer one; what was measured on another machine stands beside nothing."""
    found = [s for s in series if s.side.startswith(side) and (s.bench, s.name, s.unit)
             == (ours.bench, ours.name, ours.unit) and (s.device, s.model) == (ours.device, ours.model) and s.samples
             and same_machine(s, ours) and all(s.params.get(key, value) == value for key, value in ours.params.items())]
    found.sort(key=lambda s: s.date != ours.date)
    return found[0] if found else None


def same_machine(a: Series, b: Series) -> bool:
    return a.machine["id"] == b.machine["id"]


def median_interval(samples: list[float]) -> Interval:
    """Bootstrap, 95 %: percentiles of the medians of resampled trials."""
    return percentiles(statistics.median(samples), list(resampled_medians(tuple(samples), SEED)))


def p90(s: Series) -> float:
    """Of the trials, by the nearest rank: nine in ten take no longer."""
    return sorted(s.samples)[math.ceil(0.9 * len(s.samples)) - 1]


def ratio(over: list[float], under: list[float]) -> Interval:
    """median(over) / median(under); both sides are resampled, each on its own. Source: Efron 1979, Ann. Stat. 7:1."""
    pairs = zip(resampled_medians(tuple(over), SEED), resampled_medians(tuple(under), SEED + 1))
    return percentiles(statistics.median(over) / statistics.median(under), [a / b for a, b in pairs])


@functools.cache  # pages and charts ask for the same again
def resampled_medians(samples: tuple[float, ...], seed: int) -> list[float]:
    source, middle = random.Random(seed), len(samples) // 2
    chosen = (sorted(source.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    if len(samples) % 2:
        return [values[middle] for values in chosen]
    return [(values[middle - 1] + values[middle]) / 2 for values in chosen]


def percentiles(value: float, values: list[float]) -> Interval:
    values.sort()
    return Interval(value, values[int(0.025 * len(values))], values[int(0.975 * len(values))])


def wilson(hits: int, trials: int) -> Interval:
    """95 % interval of a share. Source: Wilson 1927, JASA 22:209."""
    z2 = 1.959964**2
    share = hits / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (z2 * (share * (1 - share) / trials + z2 / (4 * trials**2)))**0.5 / (1 + z2 / trials)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - digits_before(value))}f}"


def digits_before(value: float) -> int:
    """Of the decimal point, less one; negative for what begins after it."""
    return 0 if value <= 0 else int(f"{value:.2e}".split("e")[1])


def times(r: Interval) -> str:
    """Like 1.81x [1.78, 1.84]."""
    return f"{r.value:.2f}x [{r.low:.2f}, {r.high:.2f}]"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines).replace("|  |", "| |")


def filled(head: list[str], rows: list[list[str]], first: int) -> str:
    """The table without those columns, from `first`, that nothing is in."""
    kept = [column for column in range(len(head)) if column < first or any(row[column] for row in rows)]
    return table([head[column] for column in kept], [[row[column] for column in kept] for row in rows])
