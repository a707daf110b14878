"""Device cuda: the package dendrite-cuda is found and checked, or an Error says what lacks."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from dendrite import Engine, Error, _core

MODEL = ROOT / "models/dendrite-24"

FOREIGN = """
const char* dendrite_backend_build_id(void) { return "dendrite 0.0.1 (sources abc)"; }
void* dendrite_backend(const void* request) { return 0; }
"""


def install(folder: Path, library: Path) -> None:
    """What installing a dendrite-cuda leaves, with this library."""
    (folder / "fake_dendrite_cuda.py").write_text(f"def library():\n    return {str(library)!r}\n")
    info = folder / "fake_dendrite_cuda-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dendrite-cuda\nVersion: 1\n")
    points = "[dendrite.backends]\ncuda = fake_dendrite_cuda:library\n"
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path in which packages may be installed."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_dendrite_cuda", raising=False)
    return tmp_path


@pytest.mark.skipif(
    bool(importlib.metadata.entry_points(group="dendrite.backends")), reason="it is installed"
)
def test_without_the_package_the_error_names_the_command() -> None:
    with pytest.raises(Error, match="dendrite-cuda is not installed") as caught:
        Engine(MODEL, device="cuda")
    assert "pip install packaging/cuda" in str(caught.value)
    with pytest.raises(Error, match="device cuda:1: the package dendrite-cuda is not installed"):
        Engine(MODEL, device="cuda:1")
    assert (ROOT / "packaging/cuda/pyproject.toml").exists()


def test_a_missing_library_is_named(site: Path) -> None:
    install(site, site / "libdendrite_cuda.so")
    with pytest.raises(Error, match=r"libdendrite_cuda\.so: cannot open shared object file"):
        Engine(MODEL, device="cuda")


@pytest.mark.skipif(shutil.which("cc") is None, reason="makes a library: no C compiler")
def test_a_library_of_another_build_is_refused_with_both_names(site: Path) -> None:
    (site / "foreign.c").write_text(FOREIGN)
    library = site / "libdendrite_cuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, site / "foreign.c"], check=True)
    install(site, library)
    with pytest.raises(Error, match=r"dendrite 0\.0\.1 \(sources abc\)") as caught:
        Engine(MODEL, device="cuda")
    assert _core.build_id() in str(caught.value)


@pytest.mark.parametrize("device", ["tpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:70000"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(Error) as caught:
        Engine(MODEL, device=device, backend_library="")
    assert f'device is "{device}"; expected cpu, cuda, or cuda:N' in str(caught.value)


def test_a_library_goes_with_cuda_alone() -> None:
    with pytest.raises(Error, match="expected device cuda with it"):
        Engine(MODEL, backend_library="libdendrite_cuda.so")


@pytest.mark.skipif("DENDRITE_CUDA_LIBRARY" not in os.environ, reason="names the real library")
def test_the_real_library_computes_or_says_why_not() -> None:
    try:
        engine = Engine(MODEL, device="cuda", backend_library=os.environ["DENDRITE_CUDA_LIBRARY"])
    except Error as error:
        assert "expected an NVIDIA GPU and a driver" in str(error)
        return
    with engine, engine.session() as session:
        assert engine.info.device == "cuda"
        assert session.decode(session.prefill("S 24: 4 9 10 13\n"), max_tokens=4).ids
