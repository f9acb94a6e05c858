"""Files of shapes: what is written is read, and bad lines are named."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright import shape_list
from tilewright.shape_list import Listed

FULL = Listed(tw.Gemm(3, 4, 5, "i8", "u8", "i32", "nt", 6), 7, "x86-avx2", "fastest", "rows", 16, 8)
SCALED = Listed(tw.Gemm(3, 4, 5, "e4m3fn", out="bf16", layout="nt", scales="rows"))


@pytest.mark.parametrize("listed", [FULL, SCALED, Listed(tw.Gemm(1, 1, 1))])
def test_what_is_written_is_read(listed):
    assert Listed.from_json(listed.to_json()) == listed


def test_equal_products_are_counted_together(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text('{"m": 2, "n": 2, "k": 2}\n\n{"m": 9, "n": 9, "k": 9}\n{"m": 2, "n": 2, "k": 2, "count": 4}\n')
    assert shape_list.read(path) == [Listed(tw.Gemm(9, 9, 9)), Listed(tw.Gemm(2, 2, 2), count=5)]


@pytest.mark.parametrize(("line", "says"), [
    ("{", "this is not JSON"),
    ("[1]", "a shape is an object"),
    ('{"m": 1, "k": 2}', "the shape lacks n"),
    ('{"m": 1, "n": 1, "k": 2, "size": 3}', "a shape has no field 'size'; it may have m, n, k, a"),
    ('{"m": 1, "n": 1, "k": 2, "count": 0}', "count must be a positive whole number, not 0"),
    ('{"m": 1, "n": 1, "k": 2, "threads": true}', "threads must be a positive whole number, not True"),
    ('{"m": 1, "n": 1, "k": 2, "strides": "odd"}', "strides must be one of contiguous, rows, any, not 'odd'"),
    ('{"m": 1, "n": 1, "k": 2, "target": "sm_1"}', "there is no target 'sm_1'"),
    ('{"m": "x", "n": 1, "k": 2}', "m must be an integer, not 'x'"),
    ('{"m": 1, "n": 1, "k": 2, "a": "f31"}', "f31"),
])
def test_bad_lines_are_named(tmp_path, line, says):
    path = tmp_path / "shapes.jsonl"
    path.write_text('{"m": 1, "n": 1, "k": 1}\n' + line)
    with pytest.raises(ValueError, match=r"shapes\.jsonl, line 2: ") as error:
        shape_list.read(path)
    assert says in str(error.value)


def test_which_lines_a_plan_for_contiguous_operands_is_for():
    gpu, cpu = tw.target("sm_90a"), tw.target("x86-avx2")
    plain = Listed(tw.Gemm(3, 4, 5))
    assert plain.unlike(gpu) == plain.unlike(cpu) == ""
    assert FULL.unlike(gpu) == "it was called on x86-avx2"
    assert FULL.unlike(cpu) == "it was called with algorithm='fastest'"
    by_rows = Listed(plain.problem, strides="rows")
    assert (by_rows.unlike(gpu), by_rows.unlike(cpu)) == ("its operands were not contiguous", "")
    assert Listed(plain.problem, align=8).unlike(gpu) == "its operands were not aligned to 16 bytes"
