"""hip-python itself, on a libamdhip64.so that does nothing but call tests/doubles/fake_hip.py back.

So what hip-python makes of arguments and of results is tested too, on machines without ROCm. The library is emitted by
LLVM, a jump through a table for each function; it takes hip-python and a linker for the host's shared libraries.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import struct
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_hip import FakeHip, Functions, address, hipDeviceAttribute_t, hipError_t, hipFunction_attribute

# C's parameters: i and u of 4 bytes, z of 8, p a pointer; a capital letter, the first or the last of them, is where a
# result of that type goes.
PARAMETERS = {
    "hipInit": "u", "hipGetLastError": "", "hipGetDeviceCount": "I", "hipGetDevice": "I", "hipSetDevice": "i",
    "hipDeviceGetName": "Sii", "hipDeviceTotalMem": "Zi", "hipDeviceGetAttribute": "Iii", "hipRuntimeGetVersion": "I",
    "hipGetDevicePropertiesR0600": "pi", "hipModuleLoadData": "Pp", "hipModuleUnload": "p",
    "hipModuleGetFunction": "Ppp", "hipFuncGetAttribute": "Iip", "hipModuleLaunchKernel": "puuuuuuuppp",
    "hipStreamCreateWithFlags": "Pu", "hipStreamDestroy": "p", "hipStreamSynchronize": "p",
    "hipStreamWaitEvent": "ppu", "hipEventCreateWithFlags": "Pu", "hipEventRecord": "pp", "hipEventSynchronize": "p",
    "hipEventElapsedTime": "Fpp", "hipEventDestroy": "p", "hipMalloc": "Pz", "hipFree": "p", "hipMemcpy": "ppzi",
    "hipGetErrorString": "i", "hipMallocAsync": "Pzp", "hipFreeAsync": "pp", "hipMemsetD32Async": "pizp",
    "hipStreamIsCapturing": "pI",
}
C = {"i": ctypes.c_int, "u": ctypes.c_uint, "z": ctypes.c_size_t, "p": ctypes.c_size_t}
RESULTS = {"I": ctypes.c_int, "Z": ctypes.c_size_t, "P": ctypes.c_size_t, "F": ctypes.c_float}
ARCH = 1160  # where gcnArchName is in hipDeviceProp_tR0600
CALLBACKS: list[Any] = []  # for as long as the process: what an earlier test has left may yet be destroyed


@functools.cache
def library() -> ctypes.CDLL:
    """The shared library, loaded under the name by which hip-python asks for it."""
    import llvmlite.binding as llvm

    linker = shutil.which("ld")
    if linker is None:
        pytest.skip("there is no linker for the host's shared libraries")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    lines = [f"@table = global [{len(PARAMETERS)} x ptr] zeroinitializer"]
    for i, (name, letters) in enumerate(PARAMETERS.items()):
        result = "ptr" if name == "hipGetErrorString" else "i32"
        types = [{"i": "i32", "u": "i32", "z": "i64"}.get(letter, "ptr") for letter in letters]
        parameters = ", ".join(f"{t} %{j}" for j, t in enumerate(types))
        lines.append(
            f"define {result} @{name}({parameters}) {{\nentry:\n"
            f"  %at = getelementptr [{len(PARAMETERS)} x ptr], ptr @table, i64 0, i64 {i}\n  %f = load ptr, ptr %at\n"
            f"  %r = tail call {result} %f({parameters})\n  ret {result} %r\n}}"
        )
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    where = Path(tempfile.mkdtemp(prefix="tilewright-hip-"))
    (where / "hip.o").write_bytes(machine.emit_object(llvm.parse_assembly("\n".join(lines))))
    made = where / "libamdhip64.so"
    subprocess.run([linker, "-shared", "-soname", made.name, "-o", made, where / "hip.o"], check=True)
    loaded = ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)  # whoever asks for that name from now on gets this one
    shutil.rmtree(where)
    return loaded


def attach(fake: FakeHip) -> None:
    """From now on the library's functions are those of this fake."""
    table = (ctypes.c_void_p * len(PARAMETERS)).in_dll(library(), "table")
    for i, (name, letters) in enumerate(PARAMETERS.items()):
        CALLBACKS.append(_callback(fake, name, letters))
        table[i] = ctypes.cast(CALLBACKS[-1], ctypes.c_void_p).value


def _callback(fake: FakeHip, name: str, letters: str) -> Any:
    if name == "hipGetErrorString":
        said = ctypes.create_string_buffer(b"a text of HIP's\0 and what was there before")
        return ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(lambda status: ctypes.addressof(said))
    place = next((i for i in (0, -1) if letters and letters[i].isupper()), None)  # of the result

    def called(*given: int) -> int:
        args: tuple[Any, ...] = given if place is None else given[:-1] if place else given[1:]
        try:
            fake.log.append((name, args))
            if name in fake.fail:
                return fake.fail[name]
            if name == "hipGetDevicePropertiesR0600":
                arch = f"{fake.arch}:sramecc+:xnack-\0".encode()
                ctypes.memmove(given[0] + ARCH, arch, len(arch))
                return 0
            found = getattr(Functions, name)(fake, *_as_python_has_it(name, args))
            status, *results = found if isinstance(found, tuple) else (0,) if found is None else (0, found)
            if name != "hipGetLastError":
                fake.last = int(status) or fake.last
            if letters[:1] == "S":
                ctypes.memmove(given[0], results[0], len(results[0]))
            elif place is not None and not status:
                x = results[0]
                result = RESULTS[letters[place]].from_address(given[place])
                result.value = x if isinstance(x, (int, float)) else address(x)
            return int(status)
        except Exception:  # which cannot pass through C
            traceback.print_exc()
            return int(hipError_t.hipErrorLaunchFailure)

    types = [C.get(letter, ctypes.c_size_t) for letter in letters]
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)


def _as_python_has_it(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """C's arguments as the fake takes them from Python."""
    if name == "hipModuleLoadData":
        header = ctypes.string_at(args[0], 64)
        (sections,), (size, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
        return (ctypes.string_at(args[0], sections + size * count),)
    if name == "hipModuleGetFunction":
        return args[0], ctypes.string_at(args[1])
    if name == "hipDeviceGetAttribute":
        return hipDeviceAttribute_t(args[0]), args[1]
    if name == "hipFuncGetAttribute":
        return hipFunction_attribute(args[0]), args[1]
    return (*args[:9], args[9] or None, args[10]) if name == "hipModuleLaunchKernel" else args


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeHip) -> None:
    """hip-python instead of the fake module, and the fake behind it."""
    for name in ("hip", "hip.hip"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module()
    attach(fake)


def module() -> Any:
    """hip-python's, or the test is skipped."""
    pytest.importorskip("hip")
    from hip import hip

    return hip
