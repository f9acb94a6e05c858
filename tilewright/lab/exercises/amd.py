"""Checkers of docs/notebooks/matrix-cores-amd.ipynb: answers are compared with the formats, the catalogue of
instructions and `tw.quantize`, and kernels run in the simulator."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import formats, simulator
from tilewright.atoms.amd import find, mfma, scaled
from tilewright.formats.quantization import quantize
from tilewright.lab.exercises.cpu import differ, integers
from tilewright.lab.exercises.mechanism import Wrong, agree, ask, ask_pair, exercise, shown

F16 = mfma("gfx942", 16, 16, "f16")
LANES = 64


@exercise("amd.decode", "the value of a byte in e4m3fnuz")
def decode(answer: Callable[[int], float]) -> str:
    values = np.arange(256, dtype=np.uint8).view(formats.get("e4m3fnuz").dtype).astype(np.float64)
    for byte, wanted in enumerate(values.tolist()):
        got = ask(answer, byte)
        if got != wanted and not (got != got and wanted != wanted):
            exponent = byte >> 3 & 15
            hint = ("0x80 would be -0, which this format does not have: the pattern is its only NaN." if byte == 0x80
                    else "Exponent 0: no hidden 1 before the mantissa, and the power of two is that of exponent 1."
                    if exponent == 0 else "The highest exponent is a number like any other in this format."
                    if exponent == 15 and (got != got or abs(got) == np.inf)
                    else "The bias is 8 here, not 7." if got == 2 * wanted else "One bit of sign, four of exponent, "
                    "three of mantissa: (-1)^S 2^(E - 8) (1 + M/8).")
            raise Wrong(f"decode({byte:#04x}), in bits {byte >> 7} {exponent:04b} {byte & 7:03b}, is {got}, and the "
                        f"chip reads {wanted}. {hint}")
    return "all 256 bytes have the value that the chip reads."


@exercise("amd.peak", "the peak of an instruction")
def peak(answer: Callable[..., float]) -> str:
    cases = []
    for name, chip, cores, mhz in (("v_mfma_f32_32x32x8_f16", "gfx942", 1216, 2100),
                                   ("v_mfma_f32_32x32x16_fp8_fp8", "gfx942", 1216, 2100),
                                   ("v_mfma_f32_16x16x32_f16", "gfx950", 1024, 2400)):
        atom = find(name, chip)
        cycles = atom.cycles[chip]
        cases.append(((atom.m, atom.n, atom.k, cycles, cores, mhz), atom.flops * cores * mhz / cycles / 1e6))

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        return ("A multiply-add is two operations." if 2 * got == wanted else
                "Clocks are in MHz, and the result in TFLOP/s." if got > 1e3 * wanted else
                "How many operations has one instruction, and how often in a second does a core start one?")
    agree(answer, cases, "the catalogue says", hint)
    return "1307.4 TFLOP/s in f16 and 2614.9 in fp8 on an MI325X: the article's numbers."


@exercise("amd.holders", "which lane holds an element")
def holders(of_a: Callable[[int, int], tuple[int, int]], of_d: Callable[[int, int], tuple[int, int]]) -> str:
    for name, answer, layout in ("A", of_a, F16.a), ("D", of_d, F16.c):
        for lane in range(LANES):
            for e in range(4):
                i, j = layout(lane, e)
                got = ask_pair(answer, i, j)
                if got != (lane, e):
                    part = ("the element is right, the lane is not." if got[1:] == (e,) else
                            "the lane is right, the element is not." if got[:1] == (lane,) else
                            "neither the lane nor the element is right.")
                    rule = ("Lanes 0 to 15 are the 16 rows, for the first four k; lanes 16 to 31 the same rows, for "
                            "the next four." if name == "A" else
                            "Lanes 0 to 15 are the 16 columns; a lane has four rows, one below another.")
                    raise Wrong(f"{name}[{i}][{j}] is element {e} of lane {lane}, and your function says {shown(got)}: "
                                f"{part} {rule}")
    return "all 256 elements of A and of D are where you say."


@exercise("amd.loop", "a product with a longer k")
def loop(answer: Callable[[], Any]) -> str:
    for depth in 16, 48:
        a, b, c = integers(16, depth), integers(depth, 16, seed=1), np.full((16, 16), np.nan, np.float32)
        function = ask(answer)
        report = simulator.run(function, depth, a.astype(np.float16), b.astype(np.float16), c, grid=1)
        mma = report.instructions["mma"]
        if mma != depth // 16:
            raise Wrong(f"with k = {depth} the wave executes {mma} matrix instructions, and {depth // 16} are needed: "
                        f"one for each 16 steps of k.")
        differ(c, a @ b, f"with k = {depth}")
        if (requests := report.of("a", "load").requests) != depth // 16:
            raise Wrong(f"C is right. A was loaded by {requests} instructions with k = {depth}, and {depth // 16} are "
                        f"enough: a lane's four elements lie side by side in a row of A, so that one load of "
                        f"vec(f16, 4) fetches them.")
    return "exact with k = 16 and 48, with one load of A and one matrix instruction for each 16 steps of k."


@exercise("amd.quantise", "mxfp4 by hand")
def quantise(answer: Callable[..., tuple[int, Any]]) -> str:
    rng = np.random.default_rng(3)
    blocks = rng.standard_normal((12, 32)) * 2.0**rng.integers(-20, 20, (12, 1))
    blocks[1] = 0
    blocks[2, 5] = 6.9 * np.abs(blocks[2]).max()        # one large number makes the others small
    blocks[3] = np.linspace(-7.9, 7.9, 32)              # beyond 6, and halfway between neighbours
    for x in blocks.astype(np.float32):
        got = ask(answer, x.copy())
        try:
            scale, values = got
            values = np.asarray(values, np.float64).reshape(32)
        except (TypeError, ValueError):
            raise Wrong("the function returns the byte of the scale and 32 numbers, which an e2m1 can be: "
                        f"(scale, values); this is {shown(got)}.") from None
        q = quantize(x[None], "mxfp4")
        largest, right = np.abs(x).max(), int(q.scales[0, 0])
        if scale != right:
            raise Wrong(f"in a block with the largest number {largest:g} the scale is {right}, that is 2^{right - 127},"
                        f" and yours is {scale}. 2^floor(log2(largest)) must come down to the exponent of 6 = 2^2 * "
                        f"1.5, the largest e2m1" + ("; zeros have the smallest scale." if not largest else "."))
        wanted = q.unpacked()[0].astype(np.float64)
        if (bad := np.flatnonzero(values != wanted)).size:
            at, y = bad[0], x[bad[0]] / 2.0**(right - 127)
            raise Wrong(f"the scale is right. {x[at]:g} over it is {y:g}, which becomes {wanted[at]:g}, and yours is "
                        f"{values[at]:g}. " + ("What is beyond 6 becomes 6." if abs(y) > 6 else
                                               "It goes to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; from halfway to "
                                               "the one whose mantissa bit is 0."))
    return "scales and elements of 12 blocks are those of tw.quantize."


@exercise("amd.scales", "who holds, who brings the scale")
def scales(answer: Callable[[int, int, int], tuple[int, int]]) -> str:
    for bits, form in (8, "e4m3fn"), (4, "e2m1"):
        atom = scaled("gfx950", 32, 64, form)
        brings = {atom.scale_a(lane): lane for lane in range(LANES)}
        for lane in range(LANES):
            for e in range(32):
                i, k = atom.a(lane, e)
                wanted, got = (lane, brings[i, k // 32]), ask_pair(answer, i, k, bits)
                if got != wanted:
                    wrong = ("the scale is brought by another one" if got[:1] == (lane,) else "another lane holds it")
                    rule = ("Of 8 bits a lane has two runs of 16 along k, with those of the other lane between them."
                            if bits == 8 else "Of 4 bits a lane has one run of 32 along k.")
                    raise Wrong(f"A[{i}][{k}] of {bits} bits: your function says {shown(got)}, and {wrong}: lane "
                                f"holds it, and lane {wanted[1]} brings its scale. {rule} The scale in lane l belongs "
                                f"to block l // 32 along k, in either case.")
    return "all 2048 elements of 8 bits, and all of 4, find their lane and their scale."
