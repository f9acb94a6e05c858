"""Arguments of a launch, by name and of any size, on the fake CUDA driver and the fake HIP."""

from __future__ import annotations

import ctypes
import types

import llvmlite.binding as llvm
import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_cuda, fake_device, fake_hip
from tilewright.compiler import artefact, lld, llvm as compiler
from tilewright.ir.types import f32, i32, ptr
from tilewright.runtime.gpu.engine import AMD, NVIDIA
from tilewright.runtime.gpu.launch import Function, Parameter
from tilewright.runtime.gpu.recipe import Recipe

pytestmark = pytest.mark.code

# A product with a bias vector, a number of 4 bytes and a tensor map by value, none of which our kernels take. The order
# is no other kernel's either.
NAMES = ("m", "c", "a", "b", "alpha", "beta", "bias", "shift", "map")
CODE = {
    "nvidia": "define ptx_kernel void @wide(i32 %m, ptr addrspace(1) %c, ptr addrspace(1) %a, ptr addrspace(1) %b, "
              "float %alpha, float %beta, ptr addrspace(1) %bias, i32 %shift, ptr byval([128 x i8]) align 64 %map) "
              "{ ret void }",
    "amd": "define amdgpu_kernel void @wide(i32 %m, ptr addrspace(1) %c, ptr addrspace(1) %a, ptr addrspace(1) %b, "
           "float %alpha, float %beta, ptr addrspace(1) %bias, i32 %shift, "
           "ptr addrspace(4) byref([128 x i8]) align 64 %map) #0 { ret void }\n"
           'attributes #0 = { "amdgpu-flat-work-group-size"="64,64" }',
}
TYPES = dict(zip(NAMES, ("i32", "ptr", "ptr", "ptr", "f32", "f32", "ptr", "i32", "bytes")))
OFFSETS = dict(zip(NAMES, (0, 8, 16, 24, 32, 36, 40, 48, 64)))
SIZES = {"ptr": 8, "i32": 4, "f32": 4, "bytes": 128}
MAP = bytes(range(128))


class TensorMap(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 16)]


@pytest.fixture(params=["nvidia", "amd"])
def maker(request, monkeypatch):
    """A maker, with its fake driver, code for its GPUs, and a list of what the kernel was given."""
    name = request.param
    target = tw.target({"nvidia": "sm_90a", "amd": "gfx942"}[name])
    machine = compiler.machine(target)
    module = llvm.parse_assembly(f'target triple = "{target.triple}"\n{CODE[name]}')
    if name == "nvidia":
        fake, image = fake_cuda.install(monkeypatch), machine.emit_assembly(module).encode()
    else:
        try:
            fake, image = fake_hip.install(monkeypatch), lld.link(machine.emit_object(module))
        except lld.Missing as missing:
            pytest.skip(str(missing))
    blob = types.SimpleNamespace(bytes=128, numpy=np.dtype("V128"))
    types_of = {"i32": i32, "ptr": ptr(f32), "f32": f32, "bytes": blob}
    seen: list[dict[str, object]] = []
    params = tuple((x, types.SimpleNamespace(type=types_of[TYPES[x]])) for x in NAMES)
    kernel = fake_device.Played("wide", (64, 1), params, lambda *args: seen.append(dict(zip(NAMES, args))))
    monkeypatch.setitem(fake_device.RECORDED, "wide", kernel)
    offsets = OFFSETS | ({"map": 112} if name == "nvidia" else {})  # at a multiple of 64 of its bank of constants
    rows = [{"name": x, "type": TYPES[x], "offset": offsets[x], "size": SIZES[TYPES[x]]} for x in NAMES]
    manifest = {"symbol": "wide", "target": target.name, "workgroup": 64, "shape": [64, 1, 1], "arguments": rows,
                "shared": 0, "dynamic_shared": 0}
    return types.SimpleNamespace(of={"nvidia": NVIDIA, "amd": AMD}[name], fake=fake, seen=seen, manifest=manifest,
                                 code=artefact.Code(image, (manifest,)))


def compiled(maker, **more):
    """A compiled GEMM with one launch of that kernel."""
    launch = types.SimpleNamespace(grid=(2, 1, 1), workspace=0, counters=0, more=tuple(more.items()), at=(),
                                   zero=(0, 0))
    return types.SimpleNamespace(problem=tw.Gemm(5, 6, 7), loadable=maker.code, launches=(launch,))


@pytest.mark.parametrize("map_", [MAP, bytearray(MAP), TensorMap.from_buffer_copy(MAP)])
def test_a_recipe_fills_in_parameters_of_any_name_and_size(maker, map_):
    driver, fake = maker.of.driver, maker.fake
    a, b, c, bias = (fake.array(np.zeros(64, np.float32)) for _ in range(4))
    kernel = compiled(maker, bias=bias, shift=-3, map=map_)
    recipe = Recipe(driver, kernel, driver.device(0), 7, 6, 6)
    for alpha, beta in ((1.0, 0.0), (2.5, -1.0), (1.0, 0.5)):
        recipe.run(a, b, c, alpha, beta, 0)
        driver.synchronize(driver.device(0), 0)
        (given,) = maker.seen
        maker.seen.clear()
        assert (given["m"], given["a"], given["b"], given["c"]) == (5, a, b, c)
        assert (given["alpha"], given["beta"]) == (alpha, beta)
        assert (given["bias"], given["shift"], given["map"].tobytes()) == (bias, -3, MAP)


def test_a_launch_of_a_kernel_takes_its_arguments_by_name_or_in_order(maker):
    driver, fake = maker.of.driver, maker.fake
    a, b, c, bias = (fake.array(np.zeros(64, np.float32)) for _ in range(4))
    values = {"m": 5, "c": c, "a": a, "b": b, "alpha": 1.5, "beta": 0.0, "bias": bias, "shift": 9, "map": MAP}
    kernel = driver.load(maker.code.image, driver.device(0)).function(maker.manifest)
    assert [p.size for p in kernel.parameters] == [SIZES[TYPES[x]] for x in NAMES]
    for args in (values, dict(reversed(values.items())), [values[x] for x in NAMES]):
        driver.Prepared(kernel, (1,), args)(0)
    driver.synchronize(driver.device(0), 0)
    assert [{**given, "map": given["map"].tobytes()} for given in maker.seen] == [values] * 3


def test_machine_code_comes_before_ptx_where_the_driver_takes_it(monkeypatch):
    fake_cuda.install(monkeypatch)
    driver = NVIDIA.driver
    on, ptx = driver.device(0), CODE["nvidia"].encode() + b" .entry"
    assert driver.load(ptx, on, b"bad") is driver.load(ptx, on)
    assert driver.load(ptx, on, b"machine code, and its .entry") is not driver.load(ptx, on)


def test_nothing_is_given_silently(maker):
    driver = maker.of.driver
    for more, says in (({"bias": 0, "shift": 0}, r"wide takes 9 arguments .*; without a value: \['map'\]"),
                       ({"bias": 0, "shift": 0, "map": MAP[:64]}, "wide: map takes 128 bytes, and the value has 64"),
                       ({"bias": 0, "shift": 1 << 31, "map": MAP}, "wide: shift is i32, and 2147483648"),
                       ({"bias": 0, "shift": 0, "map": 0}, "wide: map takes a value of 128 bytes, not 0")):
        with pytest.raises(TypeError, match=says):
            Recipe(driver, compiled(maker, **more), driver.device(0), 7, 6, 6)
    kernel = driver.load(maker.code.image, driver.device(0)).function(maker.manifest)
    with pytest.raises(TypeError, match=r"unknown: \['gain'\]"):
        driver.Prepared(kernel, (1,), dict.fromkeys(NAMES, 0) | {"gain": 1})


def test_a_manifest_of_other_code_is_refused(monkeypatch):
    fake_cuda.install(monkeypatch)
    machine = compiler.machine(tw.target("sm_90a"))
    image = machine.emit_assembly(
        llvm.parse_assembly(f'target triple = "nvptx64-nvidia-cuda"\n{CODE["nvidia"]}')).encode()
    rows = [{"name": "m", "type": "i32", "offset": 0, "size": 4}]
    manifest = {"symbol": "wide", "workgroup": 64, "shape": [64, 1, 1], "arguments": rows, "shared": 0,
                "dynamic_shared": 0}
    with pytest.raises(ValueError, match=r"wide: the manifest has parameters at .* they do not belong together"):
        NVIDIA.driver.load(image, NVIDIA.driver.device(0)).function(manifest)


@pytest.mark.parametrize(("parameter", "x", "expected"), [
    (("x", "f32"), 1e39, np.float32(np.inf).tobytes()), (("x", "i64"), -1, b"\xff" * 8),
    (("x", "texture"), -2, b"\xfe\xff\xff\xff"), (("x", "f16"), 1.5, np.float16(1.5).tobytes()),
])
def test_numbers(parameter, x, expected):
    assert Parameter(*parameter, 0, len(expected)).pack(x) == expected


def test_an_array_is_no_argument():
    function = Function.__new__(Function)
    function.name, function.parameters = "f", (Parameter("x", "ptr", 0, 8),)
    with pytest.raises(TypeError, match="f: x is ptr: it cannot be an array"):
        function.pack([np.zeros(1)])
