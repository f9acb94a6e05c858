"""Object code in this process, without LLVM."""

from __future__ import annotations

import ctypes
import gc
import platform
import struct
import sys
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as binding
import pytest

import tilewright as tw
from tilewright.compiler import llvm, loader
from tilewright.targets import detect

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM places the code of other processors")

# Constants that are indexed, a function of the object, one of the C library and one of Python's
MODULE = """
target triple = "x86_64-unknown-linux-gnu"
@primes = private unnamed_addr constant [4 x i64] [i64 2, i64 3, i64 5, i64 7], align 16
@squares = {linkage} constant [4 x i64] [i64 0, i64 1, i64 4, i64 9], align 64
declare i64 @labs(i64)
declare void @Py_IncRef(ptr)
define {linkage} i64 @prime(i64 %n) noinline {{
  %place = getelementptr i64, ptr @primes, i64 %n
  %value = load i64, ptr %place
  ret i64 %value
}}
define i64 @sum(i64 %n) {{
  %positive = call i64 @labs(i64 %n)
  %x = call i64 @prime(i64 %positive)
  %place = getelementptr i64, ptr @squares, i64 %positive
  %y = load i64, ptr %place
  %sum = add i64 %x, %y
  ret i64 %sum
}}
define void @hold(ptr %o) {{
  call void @Py_IncRef(ptr %o)
  ret void
}}
"""


def compiled(module: str = MODULE, linkage: str = "internal", **options: str) -> bytes:
    llvm._initialise()
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(**{"codemodel": "jitdefault", "reloc": "pic", "jit": True} | options)
    return bytes(machine.emit_object(binding.parse_assembly(module.format(linkage=linkage))))


@pytest.mark.parametrize("linkage", ["internal", "dso_local", ""])
@pytest.mark.parametrize("reloc", ["pic", "static"])
def test_calls_and_constants(reloc, linkage):
    loaded = loader.load(compiled(reloc=reloc, linkage=linkage), detect())
    function = loaded.function("sum", ctypes.c_int64, ctypes.c_int64)
    assert [function(n) for n in (0, -1, 2, -3)] == [2, 4, 9, 16]
    held = object()
    before = sys.getrefcount(held)
    ctypes.PYFUNCTYPE(None, ctypes.py_object)(loaded.address("hold"))(held)
    assert sys.getrefcount(held) == before + 1
    with pytest.raises(KeyError, match="no function labs"):
        loaded.address("labs")


def relocations(code: bytes) -> set[int]:
    found = loader._Object(code)
    return {kind for section in found.sections if section.type == loader.RELOCATIONS
            for _, kind, _, _ in struct.iter_unpack("<QIIq", found.content(section))}


def test_each_relocation_is_tested():
    """Those that the loader knows are those of the objects above."""
    objects = [compiled(reloc=reloc, linkage=linkage) for linkage in ("internal", "") for reloc in ("pic", "static")]
    assert set.union(*map(relocations, objects)) == set(loader.KNOWN)


AVX512 = replace(tw.target("x86-avx512"), extensions=("amx-tile", "amx-bf16", "amx-int8")).extended


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", [tw.target("zen3"), AVX512], ids=lambda target: target.name)
@pytest.mark.parametrize("problem", [tw.Gemm(70, 80, 90, "bf16"), tw.Gemm(70, 80, 90, "c64"),
                                     tw.Gemm(600, 600, 600, "i8", out="i32"), tw.Gemm(2, 600, 600, "f16")], ids=str)
def test_kernels_of_any_chip(target, problem):
    """Objects for chips that this machine is not have nothing else."""
    kernel = tw.compile(problem, target)
    found = loader._Object(llvm.object_code(kernel.functions, kernel.target))
    assert relocations(found.code) <= set(loader.KNOWN)
    needed = {name for name, _, section, _ in found.symbols() if section == loader.UNDEFINED and name}
    assert needed <= {"_GLOBAL_OFFSET_TABLE_", "sched_yield"}
    assert not any(section.flags & loader.WRITABLE and section.size for section in found.sections)


def mapping(address: int) -> str:
    """The rights of the memory there, "" if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(x, 16) for x in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    return ""


def test_code_cannot_be_written_and_goes_with_its_owner():
    loaded = loader.load(compiled(), detect())
    address = loaded.address("sum")
    assert mapping(address) == "r-xp"
    del loaded
    gc.collect()
    assert mapping(address) != "r-xp"


def test_what_is_not_supported_is_refused():
    with pytest.raises(ValueError, match=r"relocation of type 2 for .* in \.rela\.text; supported are R_X86_64_64"):
        loader.load(compiled(codemodel="small", jit=False, linkage=""), detect())
    with pytest.raises(ValueError, match="needs no_such_function, which no library of this process has"):
        loader.load(compiled(MODULE.replace("@labs", "@no_such_function")), detect())
    with pytest.raises(ValueError, match=r"writable data in \.l?data, which is not supported"):
        loader.load(compiled(MODULE.replace("{linkage} constant", "global")), detect())
