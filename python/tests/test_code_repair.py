"""The code-repair agent and its sandbox: what it hands out passes a test, what it runs stays in."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from dendrite import Engine

sys.path.insert(0, str(ROOT / "python/examples"))
import code_repair  # noqa: E402
import sandbox  # noqa: E402

CHECKER = ROOT / "examples/check_derivation.py"


def passes(program: str, tmp_path: pathlib.Path) -> bool:
    file = tmp_path / "program.24"
    file.write_text(program)
    return subprocess.run([sys.executable, CHECKER, file], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["wrong_product", "dead_end", "missing_number"])
def test_a_broken_program_is_repaired(engine: Engine, tmp_path: pathlib.Path, name: str) -> None:
    program = (ROOT / f"examples/data/{name}.24").read_text()
    shown: list[tuple[str, str]] = []
    pages = engine.stats().branches_live
    found = asyncio.run(code_repair.repair(engine, program, show=lambda *a: shown.append(a)))
    assert found is not None
    assert passes(found.program, tmp_path)
    assert found.program.startswith(program.splitlines()[0])
    assert (found.strategy, "PASSED") in shown
    assert shown[0][1].startswith("fails: line ")
    assert engine.stats().branches_live == pages


def test_what_cannot_be_repaired_is_not(engine: Engine) -> None:
    program = (ROOT / "examples/data/impossible.24").read_text()
    shown: list[tuple[str, str]] = []
    assert asyncio.run(code_repair.repair(engine, program, show=lambda *a: shown.append(a))) is None
    assert sum(what.startswith("failed: ") for _, what in shown) >= 5


def test_what_passes_stays_as_it_is(engine: Engine) -> None:
    program = "S 24: 4 6\n6*4=24 | 24\n"
    found = asyncio.run(code_repair.repair(engine, program, show=lambda *a: None))
    assert found == code_repair.Repaired(program, "none")


def test_any_language_by_a_template_and_a_test(engine: Engine, tmp_path: pathlib.Path) -> None:
    test = tmp_path / "test.sh"
    test.write_text(
        f"{{ echo 'S 24: 4 5 6 10'; cat \"$1\"; }} > whole\nexec {sys.executable} {CHECKER} whole\n"
    )
    work = code_repair.repair(
        engine,
        "10-4=6 | 5 6 6\n6*5=31 | 6 31\n",
        test=f"sh {test}",
        suffix=".txt",
        template="S 24: 4 5 6 10\n",
        show=lambda *a: None,
    )
    found = asyncio.run(work)
    assert found is not None
    assert passes("S 24: 4 5 6 10\n" + found.program, tmp_path)


def run(code: str, **limits: float) -> sandbox.Outcome:
    command = [sys.executable, "-S", "program.py"]
    return asyncio.run(
        sandbox.run(command, {"program.py": code}, sandbox.Limits(**limits))  # type: ignore[arg-type]
    )


def test_a_sandbox_tells_how_it_ended() -> None:
    assert run("print('fine')") == sandbox.Outcome(True, "exit status 0", "fine\n")
    assert run("raise SystemExit(3)").end == "exit status 3"
    assert run("import os; os.abort()").end == "signal 6 (Aborted)"
    assert run("import os; print(sorted(os.listdir()))").output == "['program.py']\n"


def test_a_sandbox_limits() -> None:
    assert run("while True: pass", cpu_seconds=1).end == "ran out of time"
    begin = time.monotonic()
    assert run("import time; time.sleep(60)", seconds=0.3).end == "ran out of time"
    assert time.monotonic() - begin < 30
    assert "MemoryError" in run("bytearray(1 << 30)").output
    assert "File too large" in run("open('big', 'wb').write(b'x' * (1 << 22))").output
    flood = run("while True: print('x' * 1000)")
    assert not flood.passed
    assert len(flood.output) <= 1 << 16


def test_a_sandbox_has_no_network_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    if not sandbox.isolation():
        pytest.skip("this system forbids namespaces")
    assert "unreachable" in run("import socket; socket.create_connection(('192.0.2.1', 80))").output
    marker = tmp_path / "marker"
    late = f"sleep 0.5; touch {marker}"
    assert run(f"import subprocess; subprocess.Popen(['setsid', 'sh', '-c', {late!r}])").passed
    time.sleep(1)
    assert not marker.exists()


def test_a_cancelled_sandbox_kills_what_it_runs(tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "marker"

    async def main() -> None:
        command = ["sh", "-c", f"sleep 1; touch {marker}"]
        task = asyncio.create_task(sandbox.run(command, {}))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    time.sleep(1.5)
    assert not marker.exists()
