"""The rows of "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture".

Tables and numbers come from the catalogue of instructions and the records of formats and chips, kernels are those of
the AMD ladder: compiled by LLVM and run in the simulator, since no AMD GPU has run them.
"""
from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright import formats, simulator, targets
from tilewright.atoms.amd import LANES, Mfma, find, mfma, mfma_instructions, scaled
from tilewright.compiler import amd, llvm
from tilewright.ir import Kernel, f32, ptr
from tilewright.lab.drawing import format_table
from tilewright.lab.ladder import run
from tilewright.lab.ladder.steps import AMD_STEPS
from tilewright.lab.measure.gpu_peaks import Peak, peaks
from tilewright.lab.reproduce.row import Cell, Rows, Setting, figure
from tilewright.lab.reproduce.sources import functions

rows = Rows("cdna")
CDNA3, CDNA4 = "gfx942", "gfx950"


# ---- what Matrix Cores compute, and how fast

@rows("D = A B + C")
def multiply_add(setting: Setting) -> Cell:
    atom = mfma(CDNA3, 16, 4, "f32")
    k = Kernel("accumulate", threads=LANES, warp=LANES, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    lane = k.thread[0]
    a, b, c = (x.view(ld, 1) for x, ld in zip(k.args, (atom.k, atom.n, atom.n)))
    c_reg = k.pack(*(c[atom.c(lane, e)] for e in range(atom.c.elements)))
    (c_reg,) = k.mma(atom, [a[atom.a(lane, 0)]], [b[atom.b(lane, 0)]], [c_reg])
    for e in range(atom.c.elements):
        c[atom.c(lane, e)] = c_reg[e]
    rng = np.random.default_rng(0)
    given = [rng.integers(-8, 9, (x.rows, x.columns)).astype(np.float32) for x in (atom.a, atom.b, atom.c)]
    expected = given[0] @ given[1] + given[2]
    simulator.run(k.function, *given, grid=(1,))
    exact = int((given[2] == expected).sum())
    return Cell("simulated", f"`{atom.name}` in place, C := A B + C: {exact} of {expected.size} elements are exact.",
                f"{exact} of {expected.size}", code="(c_reg,) = k.mma(ATOM, [a_reg], [b_reg], [c_reg])")


PEAKS = {"mi325x": {"f64": 163.4, "f32": 163.4, "f16": 1307.4, "e4m3fnuz": 2614.9},
         "mi355x": {"f64": 78.6, "f32": 157.3, "f16": 2500, "e4m3fn": 5000, "e2m3": 10000, "e2m1": 10000}}


@rows("peaks of the MI325X", "peaks of the MI355X")
def peak_table(name: str, setting: Setting) -> Cell:
    chip = "mi325x" if "325" in name else "mi355x"
    target: Any = targets.target(chip)
    by_format = {x.format: x for x in peaks(target)}
    table = [(kind, by_format[kind].instruction, str(by_format[kind].cycles), f"{by_format[kind].flops / 1e12:.1f}",
              f"{by_format[kind].flops / by_format['f32'].flops:.3g}x", f"{theirs:g}",
              f"{by_format[kind].flops / 1e12 / theirs - 1:+.1%}") for kind, theirs in PEAKS[chip].items()]
    return Cell("computed", f"{target.matrix_cores} Matrix Cores at {target.clock / 1e6:.0f} MHz; `tilewright peak "
                f"{chip}` prints all formats.", f"{by_format['f16'].flops / 1e12:.1f} TF in f16",
                table=(("format", "instruction", "cycles", "TFLOP/s", "over f32", "the article", "difference"), *table))


@rows("gains of narrow formats")
def gains(setting: Setting) -> Cell:
    three, four = ({x.format: x.flops for x in peaks(targets.target(chip))}
                   for chip in ("mi325x", "mi355x"))
    table = [("MI325X: f16 over f32", three["f16"] / three["f32"], "nearly 8"),
             ("MI325X: fp8 over f32", three["e4m3fnuz"] / three["f32"], "16"),
             ("f16, MI355X over MI325X", four["f16"] / three["f16"], "up to 2"),
             ("fp8, MI355X over MI325X", four["e4m3fn"] / three["e4m3fnuz"], "up to 2"),
             ("MI355X: fp4 over f32", four["e2m1"] / four["f32"], "64")]
    values = [f"{value:.4g}" for _, value, _ in table]
    lines = [(what, value, said) for value, (what, _, said) in zip(values, table)]
    return Cell("computed", "Ratios of the peaks above.", f"{values[0]}, {values[1]}, {values[2]}, {values[4]}",
                table=(("ratio", "computed", "the article"), *lines))


# (A and B, m x n x k, cycles by the article; formats of A on either chip, for "f8f6f4" the slower and the faster)
TABLE = (
    ("FP64", (16, 4), "64", ("f64",)), ("FP32", (32, 2), "64", ("f32",)), ("FP32", (16, 4), "32", ("f32",)),
    ("FP16 (BF16)", (32, 8), "32", ("f16", "bf16")), ("FP16 (BF16)", (16, 16), "16", ("f16", "bf16")),
    ("FP16 (BF16)", (16, 32), "16", ("f16", "bf16")), ("FP16 (BF16)", (32, 16), "32", ("f16", "bf16")),
    ("FP8", (16, 32), "16", ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
    ("FP8", (32, 16), "32", ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
    ("FP8/FP6/FP4", (16, 128), "16 or 32", ("e2m1", "e2m3", "e3m2", "e4m3fn", "e5m2")),
    ("FP8/FP6/FP4", (32, 64), "32 or 64", ("e2m1", "e2m3", "e3m2", "e4m3fn", "e5m2")),
    ("MXFP8/MXFP6/MXFP4", (16, 128), "16 or 32", ("e2m1", "e2m3", "e3m2", "e4m3fn", "e5m2")),
    ("MXFP8/MXFP6/MXFP4", (32, 64), "32 or 64", ("e2m1", "e2m3", "e3m2", "e4m3fn", "e5m2")),
)


def cycles(arch: str, shape: tuple[int, int], kinds: tuple[str, ...], scales: bool) -> str:
    """Cycles of the instructions of this shape that an architecture has for these formats of A: "16 or 32", or "-"."""
    counts = {x.cycles[arch] for x in mfma_instructions(arch) if (x.m, x.k) == shape and x.a_format in kinds
             and x.scaled == scales and x.blocks == 1}
    return " or ".join(map(str, sorted(counts))) or "-"


@rows("MFMA instructions")
def instructions(setting: Setting) -> Cell:
    table = []
    for kind, (m, depth), theirs, kinds in TABLE:
        three, four = (cycles(arch, (m, depth), kinds, kind.startswith("MX")) for arch in (CDNA3, CDNA4))
        same = "yes" if {three, four} <= {theirs, "-"} else "no"
        table.append((kind, f"{m}x{m}x{depth}", three, four, theirs, same))
    others = sum(x.blocks == 1 and x.a_format.startswith(("i", "xf")) for x in mfma_instructions(CDNA3))
    batched = sum(x.blocks > 1 for x in mfma_instructions(CDNA3))
    agree = sum(row[-1] == "yes" for row in table)
    return Cell("computed", f"The catalogue has besides, on CDNA3, {others} for integers and xf32 and {batched} that "
                "compute several products: `tilewright mfma list`.", f"{agree} of {len(table)} alike",
                table=(("A and B", "m x n x k", "CDNA3", "CDNA4", "the article", "alike"), *table))


@rows("peak of an instruction", "peak of 32x32x8 FP16")
def peak_formula(name: str, setting: Setting) -> Cell:
    target: Any = targets.target("mi325x")
    x = next(x for x in peaks(target) if x.format == "f16")
    atom = find(x.instruction, CDNA3)
    said = f"2 * {atom.m} * {atom.n} * {atom.k} * {x.units} * ({x.clock / 1e6:.0f} / {x.cycles}) / 10^6 = " \
           f"{x.flops / 1e12:.1f} TFLOP/s"
    if name == "peak of an instruction":
        return Cell("computed", "What `tilewright peak CHIP` computes; `work` are the multiply-adds of an instruction.",
                    "the same", code=functions(Peak))
    return Cell("computed", f"{said}, for `{atom.name}` on an {target.model}.", f"{x.flops / 1e12:.1f} TFLOP/s")


# ---- number formats

NAMES = ("f16", "bf16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0", "e2m3", "e3m2", "e2m1")
# exponent bias and range, as the article has them
THEIRS = {"f16": ("15", "±65504"), "bf16": ("127", "±3.3895e+38"), "e4m3fn": ("7", "±448"), "e4m3fnuz": ("8", "±240"),
          "e5m2": ("15", "±57344"), "e5m2fnuz": ("16", "±57344"), "e8m0": ("127", "2^-127 to 2^127"),
          "e2m3": ("1", "±7.5"), "e3m2": ("3", "±28"), "e2m1": ("1", "±6")}


@rows("formats")
def number_formats(setting: Setting) -> Cell:
    kept = [format_table.HEADINGS.index(x) for x in ("format", "bits", "shape", "bias", "range", "zero", "nan", "inf")]
    fields = {row[0]: tuple(row[i] for i in kept) for row in format_table.rows()}
    alike = 0
    for name, (bias, span) in THEIRS.items():
        alike += bias == fields[name][3] and (span == fields[name][4] or abs(
            float(span[1:]) / float(fields[name][4][1:]) - 1) < 1e-4)
    return Cell("computed", f"S is either sign, ≠0 every mantissa but 0. Bias and range are the article's in {alike} "
                f"of {len(THEIRS)} rows.", f"{alike} of {len(THEIRS)} alike",
                table=(tuple(format_table.HEADINGS[i] for i in kept), *(fields[name] for name in NAMES)))


@rows("g81.png")
def value(setting: Setting) -> Cell:
    checked = patterns = 0
    for name in NAMES:
        f: Any = formats.get(name)
        for pattern in range(1 << f.bits) if f.bits <= 8 else range(0, 1 << f.bits, 7):
            exponent, mantissa = pattern >> f.mantissa & (1 << f.exponent) - 1, pattern & (1 << f.mantissa) - 1
            sign = -1 if f.signed and pattern >> f.bits - 1 else 1
            hidden = 1 if exponent or name == "e8m0" else 0
            number = sign * 2.0**((exponent or 1 - hidden) - f.bias) * (hidden + mantissa / (1 << f.mantissa))
            decoded = f.decode(pattern)
            if np.isfinite(decoded):
                patterns, checked = patterns + 1, checked + (decoded == number)
    drawn = figure("cdna/g81.png", setting)
    return Cell("drawn", "(-1)^sign * 2^(exponent - bias) * 1.mantissa; where the exponent field is 0, (-1)^sign * "
                f"2^(1 - bias) * 0.mantissa. The formula gives {checked:,} of {patterns:,} finite numbers of the ten "
                "formats as the decoder does (of 16 bits every seventh pattern).", f"{checked:,} right",
                svg=drawn.svg, code=str(formats.explain(formats.get("f16"), 0x3555)))


@rows("exponents of FP16")
def f16_exponents(setting: Setting) -> Cell:
    f: Any = formats.get("f16")
    largest = max(e for e in range(1 << f.exponent) if np.isfinite(f.decode(e << f.mantissa)))
    return Cell("computed", f"Of {1 << f.exponent} exponents {largest} is the largest with finite numbers; above it "
                f"are {f.decode(31 << f.mantissa)} and {f.decode((31 << f.mantissa) + 1)}.", str(largest))


@rows("range of E8M0")
def e8m0_range(setting: Setting) -> Cell:
    f: Any = formats.get("e8m0")
    low, high = (int(np.log2(f.decode(pattern))) for pattern in (0, 254))
    return Cell("computed", f"0 is 2^{low}, 254 is 2^{high}, 255 is {f.decode(255)}.", f"2^{low} ... 2^{high}")


@rows("value of a scale")
def scale_value(setting: Setting) -> Cell:
    f: Any = formats.get("e8m0")
    return Cell("computed", "", f"127 is {f.decode(127):g}", code=str(formats.explain(f, 127)))


# ---- intrinsics

def intrinsic_call(step: str, arch: str) -> str:
    """The call in LLVM IR, with its constants of zeros folded."""
    text = llvm.text(AMD_STEPS[step].emit(arch), targets.target(arch))
    line = next(x.strip() for x in text.splitlines() if "call" in x and "amdgcn.mfma" in x)
    return re.sub(r"<float +0x0(, float +0x0)*>", "zeroinitializer", line.replace('"', ""))


@rows("syntax of the intrinsics")
def syntax(setting: Setting) -> Cell:
    return Cell("compiled", "In LLVM IR, of the second kernel; cbsz, abid and blgp are the three zeros.",
                "6 arguments", code=intrinsic_call("f16", CDNA3))


@rows("names of the intrinsics")
def intrinsics(setting: Setting) -> Cell:
    atoms = [find(f"__builtin_amdgcn_mfma_{name}", CDNA3) for name in ("f32_16x16x16f16", "f32_32x32x16_fp8_fp8",
                                                                 "f32_32x32x16_fp8_bf8")]
    return Cell("computed", "Found by their names in C, on CDNA3.", f"{len(atoms)} found", table=(
        ("assembly", "m x n x k", "A", "B", "C, D"),
        *((x.name, f"{x.m}x{x.n}x{x.k}", x.a_format, x.b_format, x.c_format) for x in atoms)))


@rows("syntax with scales")
def scaled_syntax(setting: Setting) -> Cell:
    kinds = ("e4m3fn", "e5m2", "e2m3", "e3m2", "e2m1")
    codes = [(kind, str(scaled(CDNA4, 32, 64, kind).numbers[0]), f"{scaled(CDNA4, 32, 64, kind).a.bits} bits")  # type: ignore[index]
             for kind in kinds]
    called = "\n".join([intrinsic_call("mxfp4", CDNA4), "", *assembly_of("mxfp4", CDNA4, r"v_mfma")])
    return Cell("compiled", "The fifth kernel in LLVM IR and in assembly.", f"types 0 ... {len(kinds) - 1}",
                table=(("format", "type", "an element"), *codes), code=called)


@rows("bits of the operands")
def operand_bits(setting: Setting) -> Cell:
    fp4, fp8 = scaled(CDNA4, 32, 64, "e2m1"), scaled(CDNA4, 32, 64, "e4m3fn")
    return Cell("compiled", f"32 elements of fp4 are {32 * fp4.a.registers} bits, of fp8 {32 * fp8.a.registers}: "
                f"`{fp4.intrinsic}` beside `{fp8.intrinsic}`.", f"{32 * fp4.a.registers} bits",
                code=intrinsic_call("mxfp4", CDNA4))


# ---- the five kernels

Address = Callable[[int, int], int]     # of a lane's element, in elements from the matrix's first


def _rows32(t: int, e: int) -> int: return t % 32 + t // 32 * 4 * 32 + e % 4 * 32 + e // 4 * 32 * 8


# where the article's kernels load and store: A, B, C
ADDRESSES: dict[str, tuple[Address, Address, Address]] = {
    "f32": (lambda t, e: t // 32 + 2 * (t % 32), lambda t, e: t % 32 + t // 32 * 32, _rows32),
    "f16": (lambda t, e: 4 * (t // 16) + 16 * (t % 16) + e, *2 * (lambda t, e: e * 16 + t % 16 + t // 16 * 64,)),
    "fp8": (lambda t, e: t // 32 * 8 + t % 32 * 16 + e, lambda t, e: e * 32 + t % 32 + t // 32 * 8 * 32, _rows32),
    "mxfp8": (lambda t, e: t % 32 * 64 + t // 32 * 16 + e // 16 * 32 + e % 16,
              lambda t, e: t % 32 + 32 * 16 * (t // 32) + 32 * (e % 16) + e // 16 * 32 * 32, _rows32),
    "mxfp4": (lambda t, e: 2 * (t % 32 * 32 + t // 32 * 16) + e,
              lambda t, e: 2 * (t % 32 // 2 + 16 * 32 * (t // 32) + 16 * e) + t % 2, _rows32),
}


def alike(step: str, atom: Mfma) -> list[str]:
    """"64 of 64" for A, B and C: the elements that the article's address and our layout give to the same lane."""
    lines = []
    for held, theirs in zip((atom.a, atom.b, atom.c), ADDRESSES[step]):
        places = [(lane, e) for lane in range(LANES) for e in range(held.elements)]
        same = sum(theirs(*at) == held(*at)[0] * held.columns + held(*at)[1] for at in places)
        lines.append(f"{same:,} of {len(places):,}")
    return lines


def assembly_of(step: str, arch: str, pattern: str) -> list[str]:
    return [line for line, _ in run.instructions(run.compiled(step, targets.target(arch))) if re.search(pattern, line)]


def kernel(name: str, setting: Setting) -> Cell:
    step = name.removeprefix("kernel ")
    table, said = [], []
    for arch in AMD_STEPS[step].targets:
        chip: Any = targets.target(arch)
        atom, (_, run_of_all) = AMD_STEPS[step].atom(arch), run.simulate_amd(step, chip, "integers")
        _, random = run.simulate_amd(step, chip, "random")
        count = Counter(kind for _, kind in run.instructions(run.compiled(step, chip)))
        used: Any = run.compiled(step, chip).resources
        counts = (count["load"], count["store"], count["vector"], used.vgprs)
        table.append((arch, atom.a_format, f"{int((run_of_all.c == run_of_all.expected).sum())} of {run_of_all.c.size}",
                      f"{random.error:.1%}", *map(str, counts)))
        said = alike(step, atom)
    arch = AMD_STEPS[step].targets[-1]
    a, b, c = said
    return Cell("simulated", f"The lane and register of an element are those that the article's addresses give: of A "
                f"{a}, of B {b}, of C {c}. Exact: of whole numbers; the error is that of random ones, as a share of "
                "the bound.",
                f"{table[-1][2]} exact",
                table=(("chip", "A", "exact", "error", "loads", "stores", "vector", "VGPRs"), *table),
                code="\n".join([functions(AMD_STEPS[step].emit), "", f"# {arch}", *(
                    f"#     {line}" for line in assembly_of(step, arch, "v_mfma"))]))


def held(name: str, setting: Setting) -> Cell:
    """How many elements of each matrix a lane has."""
    step = name.rpartition(" ")[2]
    atom = AMD_STEPS[step].atom(AMD_STEPS[step].targets[-1])
    parts = [(x, f.rows, f.columns, f.elements) for x, f in (("A", atom.a), ("B", atom.b), ("C", atom.c))]
    scales = [("Ax", atom.m, atom.k // 32, 1), ("Bx", atom.k // 32, atom.n, 1)] if atom.scaled else []
    lines = [(x, f"{m} x {n}", f"{m * n} / {LANES}", str(e)) for x, m, n, e in
             ([parts[0], *scales[:1], parts[1], *scales[1:], parts[2]])]
    return Cell("computed", f"`{atom.name}`", ", ".join(row[-1] for row in lines),
                table=(("matrix", "size", "over 64 lanes", "each"), *lines))


for step in AMD_STEPS:
    rows(f"kernel {step}")(partial(kernel, f"kernel {step}"))
for step in ("f32", "f16", "fp8", "mxfp8"):
    rows(f"elements per lane {step}")(partial(held, step))


@rows("operands with scales")
def scaled_operands(setting: Setting) -> Cell:
    atom = scaled(CDNA4, 32, 64, "e4m3fn")
    return Cell("computed", f"`{atom.name}`: A {atom.m} x {atom.k} with Ax {atom.m} x {atom.k // 32}, B {atom.k} x "
                f"{atom.n} with Bx {atom.k // 32} x {atom.n}, D {atom.m} x {atom.n}.", f"{atom.m} x {atom.k // 32}, "
                f"{atom.k // 32} x {atom.n}")


@rows("launch")
def launch(setting: Setting) -> Cell:
    manifest: dict[str, Any] = amd.manifest(AMD_STEPS["f32"].emit(CDNA3), targets.target(CDNA3), grid=[1])
    kept = {name: manifest[name] for name in ("symbol", "workgroup", "wave", "grid", "argument_bytes")}
    return Cell("compiled", "What `tilewright emit --step f32 --target gfx942 -o f32.hsaco` writes beside the code "
                "object.", f"1 x {manifest['workgroup']}",
                code="\n".join(f"{name}: {value}" for name, value in kept.items()))


@rows("extract", "create")
def nibbles(name: str, setting: Setting) -> Cell:
    x = np.random.default_rng(0).integers(0, 16, 64).astype(np.uint8)
    elements = x.view(formats.get("e2m1").dtype)
    packed = formats.pack(elements)
    unpacked = np.stack([packed & 15, packed >> 4], 1).ravel() if name == "extract" else (x[::2] | x[1::2] << 4)
    expected = x if name == "extract" else packed
    same = int((unpacked == expected).sum())
    lines = [line for line in inspect.getsource(AMD_STEPS["mxfp4"].emit).splitlines()
             if ("nibble" in line or "byte" in line) and "uint8" not in line]
    return Cell("compiled", f"`formats.{'unpack' if name == 'extract' else 'pack'}` has the same order: {same} of "
                f"{expected.size} random ones agree. In the fifth kernel:", "the low one first",
                code="\n".join(line.strip() for line in lines))
