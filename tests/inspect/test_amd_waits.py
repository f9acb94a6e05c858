"""AMD's machine code waits for what it uses: GEMMs of all kinds, followed instruction by instruction, and planted
mistakes, which are found."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tests.oracles import amd_waits
from tests.oracles.amd_waits import Memory
from tilewright.formats import FORMATS
from tilewright.inspect.resources import amd_body
from tilewright.ir import Kernel, f32, i32, ptr
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.attention import emit_attention
from tilewright.kernels.gpu.copy import emit_copy, grid
from tilewright.lab.doctor.amd_kernels import KERNELS, Launched
from tilewright.plans.amd_attention import AmdAttention
from tilewright.plans.nvidia_attention import AttentionShape

# chip, formats, layout, k, plan (None: the planner's)
FAMILIES = [
    ("gfx942", "f16", "nt", 4096, None),
    ("gfx942", "f16", "tn", 4096, None),
    ("gfx942", "i8", "nn", 4096, "mfma 64x128x64 wave=64x32 mfma=16 copy=registers stages=2 vector=16"),
    ("gfx942", "f64", "nt", 4096, None),
    ("gfx942", "f32", "tt", 4096, "mfma 32x64x16 wave=32x32 mfma=32 copy=registers stages=2 vector=4 split_k=8"),
    ("gfx950", "f16", "nt", 4096, None),
    ("gfx950", "f16", "nt", 4096, "mfma 128x32x64 wave=32x32 mfma=16 copy=lds stages=3 split_k=6"),
    ("gfx950", "bf16", "nn", 4096, None),
    ("gfx950", "i8", "tn", 4096, "mfma 64x64x64 wave=32x32 mfma=16 copy=lds stages=3 vector=16"),
    ("gfx950", "e4m3fn", "tt", 4096, None),
    ("gfx950", "f64", "nt", 4096, None),
    ("gfx950", "mxfp8", "nt", 4096, None),
    ("gfx950", "mxfp8", "nt", 4128, None),
    ("gfx950", "mxfp6", "nt", 4096, None),
    ("gfx950", "mxfp6", "nt", 4128, None),
    ("gfx950", "mxfp4", "nt", 4096, None),
    ("gfx950", "mxfp6", "nt", 4096, "scaled 64x64x128 wave=32x32 mfma=32 copy=registers stages=2 vector=21"),
    ("gfx950", "mxfp4", "nt", 4096, "scaled 64x64x256 wave=32x32 mfma=16 copy=lds stages=3 split_k=2"),
]
MX6 = FAMILIES[13]


def attention(chip, band, rows):
    """The kernel of attention for 200 queries and 333 keys of 64 numbers, and its arguments."""
    kernel = emit_attention(AttentionShape("bf16", "bf16", 64, 64, band), AmdAttention(rows=rows), ARCH=chip)
    tokens, size = {"q": 200, "k": 333, "v": 333}, 64
    given = {name: Memory(2 * n * size) for name, n in (*tokens.items(), ("out", 200))}
    given |= {f"{name}_by_{axis}": step for name, n in tokens.items()
              for axis, step in (("row", size), ("head", n * size), ("batch", n * size))}
    given |= {"out_row": size, "out_head": 200 * size, "out_batch": 200 * size, "queries": 200, "keys": 333, "heads": 1,
              "group": 1, "pairs": 1, "section": 1, "factor": 0.1, "after": 0}
    return kernel, {name: given[name] for name, _ in kernel.params}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("chip", "band", "rows"), [("gfx942", "causal", 128), ("gfx950", "", 128)])
def test_attention_waits_for_what_it_uses(chip, band, rows):
    """Both branches of what depends on numbers are one: all lanes go there."""
    kernel, given = attention(chip, band, rows)
    for block in range(-(-200 // rows)):
        assert amd_waits.findings(kernel, tw.target(chip), given, (-(-200 // rows), 1, 1), (block, 0, 0)) == []


def fresh(chip, format, layout, k, plan):
    return tw.compile(tw.Gemm(4096, 4096, k, format, layout=layout), tw.target(chip), plan)


compiled = cache(fresh)


def arguments(kernel, m, n, k, beta=0):
    """Those of an m x n x k product by this kernel, whatever it was compiled for, with exactly the memory it has."""
    s, p = kernel.shape, kernel.plan
    a_bytes, b_bytes = (m * k * s.bits[0] // 8, n * k * s.bits[1] // 8)
    found = {"m": m, "n": n, "k": k, "alpha": 1, "beta": beta, "a": Memory(a_bytes), "b": Memory(b_bytes), "ldc": n,
             "lda": k if s.layout[0] == "n" else m, "ldb": k if s.layout[1] == "t" else n,
             "c": Memory(m * n * FORMATS[s.out].bits // 8)}
    if s.scaled:
        found |= {"lda": a_bytes // m, "ldb": b_bytes // n, "ld_scale_a": k // 32, "ld_scale_b": k // 32,
                  "scale_a": Memory(m * k // 32), "scale_b": Memory(n * k // 32)}
    sums = FORMATS[s.sums].bits // 8
    return found | {"workspace": Memory(p.split_k * p.tiles(m, n) * p.cta_m * p.cta_n * sums),
                    "counters": Memory(4 * p.tiles(m, n))}


def findings(kernel, tiles, *, beta=0, text=None, short=0, block=None, take=0):
    """Of so many tiles of k for each part of it, `short` steps less."""
    p = kernel.plan
    m, n, k = 2 * p.cta_m - 32, p.cta_n + 32, p.cta_k * tiles * p.split_k - short
    given, (x, y, z) = arguments(kernel, m, n, k, beta), (p.tiles(m, n), 1, p.split_k)
    given["a"] = Memory(given["a"].bytes - take)
    return amd_waits.findings(kernel.function, kernel.target, given, (x, y, z), block or (x - 1, 0, z - 1),
                              text=text or kernel.asm, returned=p.split_k - 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda x: " ".join(map(str, x)))
def test_nothing_is_used_before_it_is_there(family):
    kernel = compiled(*family)
    for tiles in (1, 2, 5):
        assert findings(kernel, tiles, beta=tiles % 2) == []
    short = 32 if kernel.shape.scaled and kernel.plan.cta_k > 32 and not kernel.plan.direct_scales(kernel.shape) else 0
    assert findings(kernel, 4, short=short, block=(0, 0, 0)) == []


def test_spilled_registers_are_waited_for():
    kernel = compiled("gfx950", "mxfp4", "nt", 4128, "scaled 256x256x256 wave=128x64 mfma=32 copy=registers stages=2")
    assert kernel.resources.vgpr_spills
    assert findings(kernel, 3) == []
    loads = r"(scratch_load_dword\w* (v\d+|v\[(\d+):\d+\]), off, off.*\n)"
    text = changed(kernel.asm, kernel.function.name, loads,
                   lambda x: f"{x[1]}\tv_mov_b32_e32 v0, {'v' + x[3] if x[3] else x[2]}\n", 0)
    assert any("is used before scratch_load" in each for each in findings(kernel, 3, text=text))


SMALL = [entry for entry in KERNELS
         if re.search(r"axpy|ladder|split|mfma_gemm_f16(_[nt]{2})?$|_gemm_e2m3_e2m3$", entry.name)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: f"{entry.name} {entry.target}")
def test_shapes_that_fill_no_tile(entry):
    """What the self-test tries first on hardware: of each case the first block and the last one."""
    target = tw.target(entry.target)
    for case in entry.small:
        if isinstance(case, Launched):
            function, grid = case.emit(target), (*case.grid, 1, 1)[:3]
            given = {name: Memory(x.nbytes) if isinstance(x, np.ndarray) else x
                     for (name, _), x in zip(function.params, case.args, strict=True)}
        else:
            of = case.problem
            kernel = case.kernel(target)
            function, plan = kernel.function, kernel.plan
            grid = (plan.tiles(of.m, of.n), 1, plan.split_k)
            given = arguments(kernel, of.m, of.n, of.k)
        last = tuple(n - 1 for n in grid)
        for block in ((0, 0, 0), last):
            assert amd_waits.findings(function, target, given, grid, block, returned=last[2]) == []


@pytest.mark.parametrize("family", [FAMILIES[4], FAMILIES[6], FAMILIES[17]])
def test_parts_of_k_that_are_empty(family):
    """There are more parts than tiles of k."""
    kernel = compiled(*family)
    m, n, k, parts = kernel.plan.cta_m, kernel.plan.cta_n, kernel.plan.cta_k, kernel.plan.split_k
    for part in (0, parts - 1):
        assert amd_waits.findings(kernel.function, kernel.target, arguments(kernel, m, n, k), (1, 1, parts),
                                  (0, 0, part), text=kernel.asm, returned=parts - 1) == []


@pytest.mark.parametrize("plan", ["mfma 32x32x64 wave=32x32 mfma=32 copy=lds stages=3 split_k=3",
                                  "mfma 32x32x64 wave=32x32 mfma=32 copy=lds stages=2"])
def test_one_wave_alone(plan):
    """LLVM leaves its barriers out; what it waits for stays."""
    kernel = compiled("gfx950", "f16", "nt", 4096, plan)
    assert "s_barrier" not in amd_body(kernel.asm, kernel.function.name)
    for tiles in (1, 2, 5):
        assert findings(kernel, tiles) == []


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_copies_of_matrices(chip):
    function, matrices, rows, columns = emit_copy("f64", "f16", WARP=64), 2, 37, 70
    given = {"rows": rows, "columns": columns, "scale": 2, "source": Memory(8 * matrices * rows * columns),
             "rss": columns, "css": 1, "target": Memory(2 * matrices * rows * columns), "rst": 1, "cst": rows,
             "mss": rows * columns, "mst": rows * columns}
    x, y = grid(rows, columns)
    for block in ((0, 0, 0), (x - 1, y - 1, matrices - 1)):
        assert amd_waits.findings(function, tw.target(chip), given, (x, y, matrices), block) == []


def test_memory_further_away_than_32_bits_say():
    """Of products too large to try anywhere: the last workgroup, and only some of its tiles, by a smaller k."""
    for chip, layout in (("gfx942", "nt"), ("gfx942", "tn"), ("gfx950", "nt"), ("gfx950", "tn")):
        m, n, k = 1 << 20, 1 << 21, 65536
        kernel = tw.compile(tw.Gemm(m, n, k, "f16", layout=layout), tw.target(chip))
        p = kernel.plan
        given, grid = arguments(kernel, m, n, k) | {"k": 4 * p.cta_k}, (p.tiles(m, n), 1, p.split_k)
        assert amd_waits.findings(kernel.function, kernel.target, given, grid, (grid[0] - 1, 0, 0)) == []


def test_one_byte_too_few():
    for family in (FAMILIES[0], FAMILIES[5]):
        assert "beyond the arguments' memory" in findings(compiled(*family), 3, take=1)[0]


def changed(text, name, pattern, replaced, number=-1):
    """The code with one of its places that match changed, the last one unless told."""
    code = re.search(rf"^{name}:.*?^\.Lfunc_end", text, re.M | re.S)
    found = list(re.finditer(pattern, code[0]))[number]
    start, end = code.start() + found.start(), code.start() + found.end()
    return text[:start] + (replaced(found) if callable(replaced) else found.expand(replaced)) + text[end:]


def one_more(found):
    return f"{found[1]}{int(found[2]) + 1}{found[3]}"


@pytest.mark.parametrize(("pattern", "replaced", "which", "why"), [
    (r"(vmcnt\()(\d+)(\) lgkmcnt\(0\)\n\ts_barrier)", one_more, -1, "not have been written yet"),
    (r"(vmcnt\(\d+\) lgkmcnt\()(0)(\)\n\ts_barrier)", one_more, -1, "not have read yet|is used before"),
    (r"\ts_barrier\n", "", 1, "not have been written yet"),
    (r"\ts_barrier\n", "", 0, "not have been written yet"),
    (r"\tbuffer_load_dword .*lds\n", "", -1, "nobody wrote|not have been written yet"),
    (r"(m0, s\d+, 0x)6", r"\g<1>7", -1, "nobody wrote|not have read yet|another may be writing"),
    (r"(s_\w+ m0, .*\n)(?:.*\n)*?(\tbuffer_load_dword .*lds\n)", r"\1\2", 0, "m0 is used too early"),
    (r"ds_read_b128 (.*) offset:(\d)", r"ds_read_b128 \1 offset:6\2", -1, "nobody wrote|beyond|not have been written"),
    (r"(s_waitcnt lgkmcnt\()([1-9]\d*)(\)\n)", one_more, 0, "is used before ds_read"),
    (r"s_waitcnt vmcnt\(0\)", "s_nop 0", 1, "ends while a load straight into LDS"),
    (r"0x27000", "0x27002", 0, "not a buffer of bytes"),
    (r"\n(\tbuffer_load_dwordx4 .*lds)", r"\n\ts_mov_b64 exec, 7\n\1\n\ts_mov_b64 exec, -1", -1, "some lanes are off"),
])
def test_mistakes_in_the_code_are_found(pattern, replaced, which, why):
    """mxfp6 with three tiles in LDS: copies of two widths, half of them late."""
    kernel = compiled(*MX6)
    text = changed(kernel.asm, kernel.function.name, pattern, replaced, which)
    found = findings(kernel, 5, text=text)
    assert re.search(why, "\n".join(found)), found


@pytest.mark.parametrize("family", [FAMILIES[6], FAMILIES[8], MX6])
def test_a_pipeline_that_waits_for_one_copy_less_is_found(family, monkeypatch):
    """One that leaves one copy more under way than belong to the tiles after the next one."""
    wait = Kernel.lds_wait
    monkeypatch.setattr(Kernel, "lds_wait", lambda k, pending=0: wait(k, pending + 1 if pending else 0))
    assert any("not have been written yet" in each for each in findings(fresh(*family), 4))


def test_a_pipeline_that_reads_on_beyond_the_barrier_is_found(monkeypatch):
    """A tile's place is taken while its last group is still to be read."""
    around = pipeline._tile

    def early(k, *args, copies=list, **more):
        for copy in copies():
            copy()
        around(k, *args, **more)
    monkeypatch.setattr(pipeline, "_tile", early)
    assert any("not have read yet" in each for each in findings(fresh(*FAMILIES[5]), 4))


def test_loads_to_lds_do_not_outlive_the_workgroup(monkeypatch):
    wait = Kernel.lds_wait
    monkeypatch.setattr(Kernel, "lds_wait", lambda k, pending=0: wait(k, pending or 62))
    assert any("ends while a load" in each for each in findings(fresh(*FAMILIES[10]), 3))


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_what_a_wave_leaves_for_another(chip):
    def reversed_by_lds(barrier):
        k = Kernel("reversed", threads=256, warp=64, a=ptr(f32), n=i32)
        (a, n), s, t = k.args, k.smem("s", (256,), f32), k.thread[0]
        with k.when(t < n):
            s[t] = a[t]
        k.barrier() if barrier else k.warp_barrier()
        a[t] = s[255 - t]
        return k.function
    memory = {"a": Memory(1024), "n": 256}
    target = tw.target(chip)
    assert amd_waits.findings(reversed_by_lds(True), target, memory, (1, 1, 1)) == []
    (found,) = amd_waits.findings(reversed_by_lds(False), target, memory, (1, 1, 1))
    assert "may not have been written yet: ds_read_b32" in found
    (found,) = amd_waits.findings(reversed_by_lds(True), target, memory | {"n": 255}, (1, 1, 1))
    assert "nobody wrote" in found


def test_a_matrix_instruction_takes_its_time():
    kernel = compiled(*FAMILIES[0])
    lines = amd_body(kernel.asm, kernel.function.name)
    last = max(n for n, line in enumerate(lines) if line.startswith("v_mfma"))
    result = re.search(r"v\[(\d+):", lines[last])[1]
    text = changed(kernel.asm, kernel.function.name, re.escape(lines[last]) + r"\n",
                   rf"{lines[last]}\n\tv_mov_b32_e32 v{result}, v{result}\n")
    assert any("too early after a matrix instruction" in each for each in findings(kernel, 2, text=text))


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_values_that_are_not_the_same_in_all_lanes(chip):
    k = Kernel("spread", threads=64, warp=64, a=ptr(i32))
    (a,), t = k.args, k.thread[0]
    a[t] = k.uniform(t // 32)
    (found,) = amd_waits.findings(k.function, tw.target(chip), {"a": Memory(256)}, (1, 1, 1))
    assert "lanes differ" in found


@pytest.mark.parametrize("family", [FAMILIES[4], FAMILIES[6], FAMILIES[17]])
def test_parts_of_a_sum_pass_from_die_to_die(family):
    """Each die has an L2 of its own. What waves leave for other workgroups is written back (buffer_wbl2), and waited
    for, before their workgroup counts itself; what the last one reads is not what its caches had before (buffer_inv):
    AMDGPUUsage, "Memory Model GFX942", fences of the scope agent."""
    kernel = compiled(*family)
    lines = amd_body(kernel.asm, kernel.function.name)
    before = lines[: lines.index("buffer_wbl2 sc1")]
    at = max(n for n, line in enumerate(before) if line.startswith("global_store"))
    for pattern in ("buffer_wbl2 sc1", r"s_waitcnt vmcnt\(0\)", "s_barrier", r"global_atomic_add .* sc0",
                    "ds_write_b32", "s_barrier", "ds_read_b32", "buffer_inv sc1", "global_load_dwordx4"):
        later = [n for n, line in enumerate(lines) if n > at and re.match(pattern, line)]
        assert later, pattern
        assert not any(line.startswith(("global_load", "global_store")) for line in lines[at + 1:later[0]])
        at = later[0]
