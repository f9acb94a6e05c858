"""An instruction is written in one place: tilewright/ir/ops, or tilewright/atoms if it multiplies matrices."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tilewright
from tilewright.ir import Kernel
from tilewright.ir.ops import amd, atomics, gpu, nvidia, pipelines, x86

PACKAGE = Path(tilewright.__file__).parent
MODULES = [amd, atomics, gpu, nvidia, pipelines, x86]
HELPERS = {"linear_thread", "whole_cta", "in_cluster"}  # of other functions: they record no instruction themselves


@pytest.mark.parametrize("folder", ["ir", "simulator", "kernels", "compiler"])
def test_spellings_stand_with_their_operations(folder):
    """Intrinsics of one maker, and operations, are nowhere else; dialects read the numbers of threads and CTAs."""
    for path in (PACKAGE / folder).rglob("*.py"):
        if path.parent.name == "ops":
            continue
        text = path.read_text()
        assert not re.search(r"(?<!class )\bOperation\(", text), path
        if path.name != "dialects.py":
            assert not re.search(r"llvm\.(nvvm|amdgcn|x86)\.", text), path


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_kernels_list_what_records_an_instruction(module):
    methods = [getattr(method, "fget", method) for method in vars(Kernel).values()]
    listed = {inspect.unwrap(method) for method in methods if inspect.isfunction(method)}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        function = inspect.unwrap(function)
        if function.__module__ != module.__name__ or name.startswith("_") or name in HELPERS:
            continue
        if [*inspect.signature(function).parameters][:1] == ["k"]:
            assert function in listed, f"Kernel does not list {name}"
            assert function.__doc__ or module is atomics, name
