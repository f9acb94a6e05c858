"""Programs are looked for among installed distributions, not in the working directory, which is on sys.path, too."""

from __future__ import annotations

import importlib
import sys
import sysconfig

import pytest

from tilewright.compiler import lld, ptxas


def planted(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\necho planted\n")
        (folder / name).chmod(0o755)


TOOLS = "nvidia/cu13/bin/ptxas", "ziglang/zig", "ziglang/__init__.py"


@pytest.mark.parametrize("entry", ["", ".", None])
def test_a_program_in_the_working_directory_is_not_run(monkeypatch, tmp_path, entry):
    """As a prompt, a relative path and `python -m` have it on sys.path."""
    planted(tmp_path, *TOOLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path) if entry is None else entry])
    nowhere = dict.fromkeys(sysconfig.get_paths(), str(tmp_path / "nowhere"))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: nowhere)
    monkeypatch.setattr("shutil.which", lambda *args, **options: None)
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    monkeypatch.delenv("TILEWRIGHT_PTXAS", raising=False)
    monkeypatch.delenv("TILEWRIGHT_LLD", raising=False)
    importlib.invalidate_caches()
    for tool in ptxas, lld:
        with pytest.raises(tool.Missing):
            tool.find.__wrapped__()


def test_a_program_of_an_installed_distribution_is_found(monkeypatch, tmp_path):
    here, there = tmp_path / "here", tmp_path / "lib" / "site-packages"
    planted(here, *TOOLS)
    planted(there, *TOOLS)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(there)])
    nowhere = dict.fromkeys(sysconfig.get_paths(), str(tmp_path / "nowhere"))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: nowhere)
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    monkeypatch.delenv("TILEWRIGHT_PTXAS", raising=False)
    monkeypatch.delenv("TILEWRIGHT_LLD", raising=False)
    assert ptxas.find.__wrapped__() == there / "nvidia/cu13/bin/ptxas"
    assert lld.find.__wrapped__() == (str(there / "ziglang/zig"), "ld.lld")
