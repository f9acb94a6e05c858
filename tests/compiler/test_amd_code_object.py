"""Kernels for AMD's GPUs as files: linked, and described for who launches them. Skipped where there is no linker."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.helpers import code_object
from tests.helpers.amd_kernels import emit_transpose, emit_vector_add
from tilewright import simulator
from tilewright.atoms.amd import mfma
from tilewright.compiler import amd, lld, llvm
from tilewright.ir import Kernel, f16, f32, f64, i8, i16, i32, i64, ptr
from tilewright.targets import names, target

CHIPS = names("amd")


def emit_product():
    """C = A @ B, one wave: 32 x 8 by 8 x 32 numbers, by one instruction after another."""
    ATOM = mfma("gfx942", 32, 2, "f32")
    k = Kernel("product", threads=64, warp=64, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    (a, b, c), lane = k.args, k.thread[0]
    a, b, c = a.view(8, 1), b.view(32, 1), c.view(32, 1)
    acc = k.tile(1, 1, ATOM.c.type)
    for p in range(0, 8, 2):
        i, p_a = ATOM.a.layout(lane, 0)
        p_b, j = ATOM.b.layout(lane, 0)
        (acc[0, 0],) = k.mma(ATOM, [a[i, p_a + p]], [b[p_b + p, j]], [acc[0, 0]])
    for e in range(16):
        i, j = ATOM.c.layout(lane, e)
        c[i, j] = acc[0, 0][e]
    return k.function


def linked(function, chip):
    return code_object.read(amd.code_object(function, target(chip)))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("emit", [emit_vector_add, emit_transpose, emit_product])
def test_a_kernel_becomes_a_code_object(emit, chip):
    function = emit()
    found = linked(function, chip)
    assert (found.arch, found.linked) == (chip, True)
    assert {function.name, f"{function.name}.kd"} <= found.symbols
    told, metadata = amd.manifest(function, target(chip)), found.kernels[function.name]
    x, y = function.threads
    assert metadata[".reqd_workgroup_size"] == told["shape"] == [x, y, 1]
    assert metadata[".max_flat_workgroup_size"] == told["workgroup"] == x * y
    assert metadata[".group_segment_fixed_size"] == told["shared"] == function.shared_bytes
    assert metadata[".vgpr_spill_count"] == metadata[".sgpr_spill_count"] == 0
    assert metadata[".private_segment_fixed_size"] == told["uses"]["scratch"] == 0
    assert metadata[".vgpr_count"] == told["uses"]["registers"]
    args = [(arg[".name"], arg[".offset"], arg[".size"]) for arg in metadata[".args"] if ".name" in arg]
    assert args == [(arg["name"], arg["offset"], arg["size"]) for arg in told["arguments"]]


def test_the_product_is_right():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((32, 8), (8, 32)))
    c = np.empty((32, 32), np.float32)
    simulator.run(emit_product(), a, b, simulator.uninitialised(c))
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("chip", CHIPS)
def test_several_kernels_in_one(chip):
    image = amd.code_object([emit_vector_add(), emit_transpose()], target(chip))
    assert set(code_object.read(image).kernels) == {"vector_add", "transpose"}


@pytest.mark.parametrize("chip", CHIPS)
def test_arguments_lie_where_their_alignment_says(chip):
    k = Kernel("k", threads=64, warp=64, n=i8, a=ptr(f16), s=i16, x=f64, m=i32, y=f32, b=ptr(f32), last=i64)
    n, _, _, _, m, y, b, _ = k.args
    b[k.cast(n, i32) + m + k.block[0] + k.grid[0]] = y
    told = amd.manifest(k.function, target(chip), grid=["(m + 63) // 64", 2])
    assert [arg["offset"] for arg in told["arguments"]] == [0, 8, 16, 24, 32, 36, 40, 48]
    assert [arg["type"] for arg in told["arguments"]] == ["i8", "ptr", "i16", "f64", "i32", "f32", "ptr", "i64"]
    assert (told["arguments"][1]["element"], told["argument_bytes"]) == ("f16", 56)
    assert told["grid"] == ["(m + 63) // 64", 2, 1]
    assert json.loads(json.dumps(told)) == told


def test_spills_are_counted():
    k = Kernel("k", threads=64, warp=64, max_registers=64, a=ptr(f32), n=i32)
    (a, n), t = k.args, k.thread[0]
    acc = k.tile(10, 10, f32)
    with k.loop(n) as p:
        for ij in acc.registers:
            acc[ij] = k.fma(acc[ij], a[t + p], a[t - p + ij[0] * 64])
    for i, j in acc.registers:
        a[t + (i * 10 + j) * 64] = acc[i, j]
    used = amd.usage(k.function, target("gfx942"))
    assert used.vgpr_spills > 0 < used.scratch
    assert used.registers <= 64
    assert "VGPRs spilled" in str(used)


def test_what_limits_a_compute_unit():
    for size, chip, workgroups, limit in (20, "gfx942", 3, "LDS"), (40, "gfx950", 4, "LDS"), (1, "gfx942", 8, "waves"):
        k = Kernel("k", threads=256, warp=64, a=ptr(f32))
        s = k.smem("s", (size << 8,), f32)
        s[k.thread[0]] = 1.0
        k.barrier()
        k.args[0][k.thread[0]] = s[k.thread[0] ^ 1]
        used = amd.usage(k.function, target(chip))
        assert (used.workgroups, used.waves, used.limit) == (workgroups, workgroups, limit)


@pytest.mark.parametrize("chip", CHIPS)
def test_accumulators_use_both_kinds_of_registers(chip):
    """Sixteen tiles of 32 x 32 and what feeds them: more than 256 registers of a lane, and no spills."""
    ATOM = mfma(chip, 32, 2, "f32")
    k = Kernel("k", threads=256, warp=64, a=ptr(f32), n=i32)
    (a, n), t = k.args, k.thread[0]
    acc = k.tile(4, 4, ATOM.c.type)
    with k.loop(n) as p:
        x, y = ([a[t + p * 64 + e * step] for e in range(4)] for step in (64, 128))
        for i, j in acc.registers:
            (acc[i, j],) = k.mma(ATOM, [x[i]], [y[j]], [acc[i, j]])
    for i, j in acc.registers:
        k.store(a + (t * 16 + (i * 4 + j) * 4096), acc[i, j])
    used = amd.usage(k.function, target(chip))
    assert used.registers > 256
    assert used.agprs > 0 == used.vgpr_spills == used.scratch
    assert used.waves == 1


def test_the_linker_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_LLD", str(tmp_path / "none"))
    lld.find.cache_clear()
    with pytest.raises(lld.Missing, match="not a program"):
        lld.find()
    monkeypatch.delenv("TILEWRIGHT_LLD")
    monkeypatch.setattr("tilewright.compiler.installed.folders", list)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(lld.Missing, match="pip install ziglang"):
        lld.find()
    (tmp_path / "llvm/bin").mkdir(parents=True)
    (tmp_path / "llvm/bin/ld.lld").write_text("#!/bin/sh\necho no such emulation\nexit 1\n")
    (tmp_path / "llvm/bin/ld.lld").chmod(0o755)
    assert lld.find() == (str(tmp_path / "llvm/bin/ld.lld"),)
    with pytest.raises(ValueError, match="refuses the kernel: no such emulation"):
        lld.link(llvm.object_code(emit_vector_add(), target("gfx942")))
    lld.find.cache_clear()
