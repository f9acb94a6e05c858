"""tilewright mfma and tilewright peak: what they print, draw and refuse, against the numbers of AMD's article."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from tests.helpers.command_line import said
from tilewright import targets
from tilewright.atoms.amd import CATALOGUE, find, mfma_instructions
from tilewright.lab.cli import describe
from tilewright.lab.drawing import lanes
from tilewright.lab.drawing.pen import Shape
from tilewright.lab.measure import cpu_peaks, gpu_peaks as peaks


def refused(*arguments: str) -> str:
    return said(*arguments, status=2)


# ---- peaks

# "Matrix Core Programming on AMD CDNA3 and CDNA4", the tables of chapter 1: TFLOP/s, and how often f32's
ARTICLE = [
    ("mi325x", "f64", 163.4, 1), ("mi325x", "f32", 163.4, 1), ("mi325x", "f16", 1307.4, 8),
    ("mi325x", "e4m3fnuz", 2614.9, 16), ("mi355x", "f64", 78.6, 0.5), ("mi355x", "f32", 157.3, 1),
    ("mi355x", "f16", 2516.6, 16), ("mi355x", "e4m3fn", 5033.2, 32), ("mi355x", "e2m3", 10066.3, 64),
    ("mi355x", "e2m1", 10066.3, 64),
]
# and of the data sheets of other chips: https://www.amd.com/en/products/accelerators/instinct.html,
# https://www.nvidia.com/en-us/data-center/
SHEETS = [
    ("mi300x", "xf32", 653.7), ("mi300x", "i8", 2614.9), ("mi300x", "bf16", 1307.4), ("mi300a", "f16", 980.6),
    ("mi300a", "e4m3fnuz", 1961.2), ("mi350x", "f16", 2306.9), ("mi350x", "e2m1", 9227.5),
    ("h200", "f16", 989.4), ("h200", "e4m3fn", 1978.9), ("h200", "tf32", 494.7), ("h200", "f64", 66.9),
    ("a100", "f16", 311.9), ("a100", "f64", 19.5), ("a100", "i8", 623.7), ("t4", "f16", 65.1), ("sm_89", "f16", 165.2),
    ("sm_86", "f16", 71.2),
]


@pytest.mark.parametrize(("chip", "format", "tflops"), [*(row[:3] for row in ARTICLE), *SHEETS])
def test_peaks_are_those_of_the_tables(chip: str, format: str, tflops: float) -> None:
    (peak,) = (x for x in peaks.peaks(targets.target(chip)) if x.format == format)
    assert round(peak.flops / 1e12, 1) == tflops


@pytest.mark.parametrize(("chip", "format", "tflops", "times"), ARTICLE)
def test_peak_prints_them(chip: str, format: str, tflops: float, times: float) -> None:
    (line,) = re.findall(rf"^{format} +v_mfma.*", said("peak", chip), re.M)
    assert line.split()[-3:] == [str(tflops), "TFLOP/s", f"{times}x"]


def test_peak_shows_the_formula() -> None:
    assert "f16: 2*32*32*8 * 1216 Matrix Cores * 2100 MHz / 32 cycles = 1307.4 TFLOP/s" in said("peak", "mi325x")
    assert "f16: 2*2048 * 132 SMs * 1830 MHz = 989.4 TFLOP/s" in said("peak", "h200")
    assert "mi325x.html" in said("peak", "mi325x")


@pytest.mark.parametrize("name", [*targets.names("gpu"), *targets.names("amd")])
def test_every_gpu_has_peaks(name: str) -> None:
    for peak in peaks.peaks(targets.target(name)):
        assert 1e11 < peak.flops < 2e16
        assert peaks.source(targets.target(name)).startswith("https://")


def test_the_peak_of_a_cpu_is_that_of_the_article() -> None:
    """https://salykova.github.io/matmul-cpu: 8 cores at 4.7 GHz with AVX2, 32 operations a cycle each: 1203 GFLOP/s."""
    text = said("peak", "zen5", "--cores", "8", "--clock", "4.7")
    assert re.search(r"^f32 +AVX2 +2 +32 +150\.4 +1203\.2$", text, re.M)
    assert "clock is unknown" in said("peak", "zen4")


def test_the_peak_of_this_machine_is_measured() -> None:
    for peak in cpu_peaks.here(cores=1):
        assert peak.one == peak.flops
        assert peak.fmas in (0.5, 1, 1.5, 2, 2.5, 3)
        assert peak.measured


def test_peak_refuses() -> None:
    assert "are for CPUs" in refused("peak", "h100", "--cores", "2")
    assert "zen5" in refused("peak", "x86-avx2")
    assert "there is no target 'mi999'" in refused("peak", "mi999")


# ---- the list


def test_the_list_has_all_of_them() -> None:
    lines = said("mfma").splitlines()
    assert lines == said("mfma", "list").splitlines()
    assert sum(line.startswith("v_mfma_") for line in lines) == len(CATALOGUE)
    of_one = said("mfma", "list", "-t", "mi300a").splitlines()
    assert sum(line.startswith("v_mfma_") for line in of_one) == len(mfma_instructions("gfx942"))
    (row,) = (line for line in lines if line.startswith("v_mfma_f64_16x16x4_f64"))
    assert row.split() == ["v_mfma_f64_16x16x4_f64", "16x16x4", "1", "f64", "f64", "2+2+8", "32", "64"]


# ---- one of them


def test_what_an_instruction_says() -> None:
    text = said("mfma", "v_mfma_scale_f32_32x32x64_f8f6f4", "--a", "e4m3fn", "--b", "e2m1", "--no-tables")
    for line in ("A 32 x 64 e4m3fn, B 64 x 32 e2m1, D 32 x 32 f32", "64 cycles, 16 passes; 8192 FLOP",
                 "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4.v8i32.v4i32", "Ax 32 x 2, Bx 2 x 32",
                 "i = lane % 32, k = e // 16 * 32 + lane // 32 * 16 + e % 16", "k = lane // 32 * 32 + e, j = lane % 32",
                 "i = e // 4 * 8 + lane // 32 * 4 + e % 4, j = lane % 32", "k // 32 = lane // 32"):
        assert line in text
    assert "cdna4" in text


@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x1_4b_f32", "v_mfma_f64_16x16x4_f64", "v_mfma_f32_16x16x16_f16"])
def test_formulas_are_the_layouts(name: str) -> None:
    atom = find(name)
    for what, text in describe.details(atom):
        for letter, operand in describe.operands(atom).items():
            if what.startswith(letter + "["):
                parts = dict(part.split(" = ") for part in text.split(", "))
                for (block, *at), (lane, e) in operand.where.items():
                    values = {key: eval(formula, {"lane": lane, "e": e}) for key, formula in parts.items()}
                    assert [values[role] for role in describe.ROLES[letter]] == at
                    assert values.get("block", 0) == block


def test_an_element_and_back() -> None:
    name = "v_mfma_f32_32x32x16_fp8_fp8"
    assert said("mfma", name, "-e", "3,5").splitlines() == [
        "A[3][5]  lane 3, v1[15:8]", "B[3][5]  lane 5, v0[31:24]", "D[3][5]  lane 5, v3"]
    assert "v1[15:8]    A[3][5]" in said("mfma", name, "--lane", "3", "-m", "a")
    assert said("mfma", name, "-e", "31,15", "-m", "A") == "A[31][15]  lane 63, v1[31:24]\n"
    assert "D[2][3]  lane 23, v2" in said("mfma", "v_mfma_f32_4x4x1_16b_f32", "-e", "2,3,5")
    six = said("mfma", "v_mfma_f32_32x32x64_f8f6f4", "--a", "e2m3", "-e", "0,5")
    assert "A[0][5]  lane 0, v0[31:30]+v1[3:0]" in six


def test_c_is_held_as_d_is() -> None:
    name = "v_mfma_f32_32x32x2_f32"
    assert said("mfma", name, "-e", "9,3", "-m", "C") == "C[9][3]  lane 3, v5\n"
    for more in ((), ("-l", "7")):
        c, d = (said("mfma", name, "-m", x, *more) for x in "CD")
        assert re.sub(r"\bC\[", "D[", c).replace("registers of C", "registers of D") == d


def test_tables_name_every_element() -> None:
    """Both ways: the table of the matrix and that of the registers tell the same, and no element is left out."""
    text = said("mfma", "v_mfma_f32_16x16x4_4b_f16", "-m", "a")
    tables = re.findall(r"^A\[i\]\[k\]\.B(\d), f16: lane:register\n +0 +1 +2 +3\n((?:\d+ .*\n){16})", text, re.M)
    assert len(tables) == 4
    found: dict[str, str] = {}
    for block, table in tables:
        for line in table.splitlines():
            row, *cells = line.split()
            found |= {cell: f"[{row}][{k}].B{block}" for k, cell in enumerate(cells)}
    assert len(found) == 4 * 16 * 4
    (registers,) = re.findall(r"^lane +(v0\S+) +(v0\S+) +(v1\S+) +(v1\S+)\n((?:\d+ .*\n){64})", text + "\n", re.M)
    for line in registers[4].splitlines():
        lane, *elements = line.split()
        for register, element in zip(registers, elements):
            assert found.pop(f"{lane}:{register}") == element
    assert not found


def test_wide_tables_go_on_below() -> None:
    text = said("mfma", "v_mfma_f32_16x16x128_f8f6f4", "--a", "e2m1", "-m", "A")
    assert max(map(len, text.splitlines())) < 260
    assert len(re.findall(r"^15  ", text, re.M)) == 128 // 16 + 32 // 16       # rows of the matrix, and lane 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("mfma_f32",), "no dense matrix instruction 'mfma_f32'"),
     (("v_mfma_f32_32x32x2_f32", "-t", "h200"), "gfx942, gfx950"),
     (("v_mfma_f32_16x16x8_xf32", "-t", "gfx950"), "there is xf32 by xf32 on gfx942"),
     (("v_mfma_f32_32x32x2_f32", "-m", "x"), "--matrix must be A, B, C or D"),
     (("v_mfma_f32_32x32x2_f32", "-e", "5"), "--element must be row,column"),
     (("v_mfma_f32_32x32x2_f32", "-e", "40,40"), "no matrix of v_mfma_f32_32x32x2_f32 has an element 40,40"),
     (("v_mfma_f32_32x32x2_f32", "-e", "3,2", "-m", "a"), "there is no element 3,2: the matrix is 32 x 2"),
     (("v_mfma_f32_32x32x2_f32", "-l", "64"), "there is no lane 64"),
     (("v_mfma_f32_32x32x2_f32", "--mark", "0,64"), "--mark takes lanes from 0 to 63"),
     (("v_mfma_f32_32x32x64_f8f6f4", "--a", "f16"), "there is e4m3fn by e4m3fn on gfx950")],
)
def test_what_it_refuses(arguments: tuple[str, ...], words: str) -> None:
    assert words in " ".join(refused("mfma", *arguments).split())


# ---- pictures


SVG = "{http://www.w3.org/2000/svg}"


def cells(path: Path) -> dict[str, str]:
    """What a pointer over each cell shows → its hue."""
    found = {}
    for box in ElementTree.parse(path).iter(f"{SVG}rect"):
        if (title := box.find(f"{SVG}title")) is not None and title.text:
            found[title.text] = box.get("class", "").split()[0].removeprefix("f-")
    return found


def test_an_svg_shows_every_element(tmp_path: Path) -> None:
    path = tmp_path / "layout.svg"
    said("mfma", "v_mfma_f32_32x32x2_f32", "--no-tables", "--svg", str(path))
    found, atom = cells(path), find("v_mfma_f32_32x32x2_f32")
    assert len(found) == 32*2 + 2*32 + 32*32
    for name, operand in describe.operands(atom).items():
        for (_, row, column), (lane, _) in operand.where.items():
            what = f"{name}[{row}][{column}]: {describe.located(operand, 0, row, column)}"
            assert (found[what] == "red") == (lane == 0)
    texts = [x.text for x in ElementTree.parse(path).iter(f"{SVG}text")]
    assert texts.count("63") == 1 + 1 + 16         # lanes, in A, B and D


def test_the_picture_of_the_page_is_what_is_drawn(tmp_path: Path) -> None:
    name = "v_mfma_f32_16x16x16_f16.svg"
    said("mfma", name.removesuffix(".svg"), "--no-tables", "--svg", str(tmp_path / name))
    assert (tmp_path / name).read_text() == (Path(__file__).resolve().parents[3] / "docs" / name).read_text()


def test_scales_and_two_lanes_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "layout.svg"
    said("mfma", "v_mfma_scale_f32_32x32x64_f8f6f4", "--a", "e2m1", "--no-tables", "--svg", str(path))
    found = cells(path)
    assert sum(what.startswith("Ax[") for what in found) == sum(what.startswith("Bx[") for what in found) == 64
    for hue in ("red", "green"):        # of each lane: 32 of A and of B, 16 of D, two scales
        assert list(found.values()).count(hue) == 32 + 32 + 16 + 2
    texts = [x.text for x in ElementTree.parse(path).iter(f"{SVG}text")]
    assert {"lane 0", "lane 32"} <= {*texts}


def test_no_two_cells_lie_on_each_other() -> None:
    for atom in (find("v_mfma_f32_4x4x4_16b_f16"), find("v_mfma_scale_f32_16x16x128_f8f6f4")):
        boxes = [shape for shapes in lanes.layouts(atom).shapes if isinstance(shapes, Shape) and shapes.width < 1
                 for shape in shapes.corners]
        corners = sorted(shape[0] for shape in boxes)
        assert len(set(corners)) == len(corners)
        rows: dict[float, list[float]] = {}
        for x, y in corners:
            rows.setdefault(y, []).append(x)
        size = boxes[0][1][0] - boxes[0][0][0]
        assert all(b - a >= size * 0.99 for xs in rows.values() for a, b in pairwise(xs))


def test_a_png_is_the_same_picture(tmp_path: Path) -> None:
    matplotlib_image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "layout.png"
    said("mfma", "v_mfma_f32_16x16x4_f32", "--no-tables", "--png", str(path), "--mark", "5")
    pixels = matplotlib_image.imread(path)
    drawn = lanes.layouts(find("v_mfma_f32_16x16x4_f32"), [5])
    left, top, width, _ = drawn.box
    assert abs(pixels.shape[1] - width) <= 1
    for shape in drawn.shapes:
        if isinstance(shape, Shape) and shape.width < 1:
            for (x, y), *_ in shape.corners:
                red, green, _ = pixels[int(y - top) + 3, int(x - left) + 3, :3]     # a corner, where no text is
                assert (red - green > 0.2) == (shape.fill == "red")
