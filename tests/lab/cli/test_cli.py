"""Every command's help, what `tilewright run` makes of good and bad files, errors in one line with status 2."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import tilewright
from tests.doubles.fake_cuda import install
from tests.helpers.command_line import COMMANDS, call, refused
from tests.helpers.processes import printed
from tilewright import formats, targets
from tilewright.compiled.compile import compiled
from tilewright.compiler import ptxas
from tilewright.ir import Kernel, f32, i32, ptr
from tilewright.lab.cli import app, command, common, npy
from tilewright.runtime.cuda import driver

# ---- help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_every_option(path: tuple[str, ...]) -> None:
    result = call(*path, "--help")
    assert result.exit_code == 0
    command = get_command(app)
    for name in path:
        command = command.commands[name]  # type: ignore[attr-defined]
    assert (command.help or "").strip()
    for parameter in command.params:
        assert getattr(parameter, "help", None) or parameter.name in ("help", "context"), (path, parameter.name)


def test_the_commands_are_there() -> None:
    top = {path[0] for path in COMMANDS if path}
    assert top >= {"doctor", "plan", "emit", "asm", "run", "explain", "tune", "bench", "cache"}


def test_version_and_no_arguments() -> None:
    assert call("--version").output == f"tilewright {tilewright.__version__}\n"
    assert "Usage" in call().output


def test_the_command_line_loads_nothing_that_help_does_not_need() -> None:
    heavy = "numpy llvmlite matplotlib sqlite3 torch tilewright.api.products tilewright.lab.bench.peer tilewright.plans"
    loaded = printed("import sys, tilewright.lab.cli\n"
                     f"print([name for name in {heavy.split()!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


# ---- run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """a.npy [5, 7] and b.npy [7, 3] of f32."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", rng.standard_normal((5, 7), np.float32))
    np.save(tmp_path / "b.npy", rng.standard_normal((7, 3), np.float32))
    return tmp_path


def multiply(files: Path, *options: object) -> Any:
    return call("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy", *options)


def expected(files: Path) -> Any:
    return np.matmul(np.load(files / "a.npy"), np.load(files / "b.npy"))


def temporaries(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix == ".part"]


def test_run_multiplies_files(files: Path) -> None:
    result = multiply(files, "--check", "--threads", 1)
    assert result.exit_code == 0, result.output
    assert "5 x 3 float32" in result.output
    assert "agrees with float64" in result.output
    c = np.load(files / "c.npy")
    assert c.dtype == np.float32
    np.testing.assert_allclose(c, expected(files), rtol=1e-5, atol=1e-5)
    assert temporaries(files) == []


SHAPES = [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((3, 2, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
          ((3, 4), (2, 4, 1)), ((0, 4), (4, 3)), ((3, 0), (0, 2)), ((2, 0, 4), (4, 3)), ((1, 1), (1, 1))]
OTHERS = [("f2", "f4"), ("i1", "i1"), ("i8", "u4"), ("u8", "u8"), ("?", "?"), ("c8", "f4"), ("c16", "c16")]


@pytest.mark.parametrize(("shapes", "dtypes"), [*product(SHAPES, [("f4", "f4"), ("f8", "f8"), ("f4", "f8")]),
                                                *product([((5, 7), (7, 3))], OTHERS)])
def test_run_follows_numpy(tmp_path: Path, shapes: Any, dtypes: tuple[str, str]) -> None:
    draw = np.random.default_rng(2)
    for name, shape, dtype in zip("ab", shapes, dtypes):
        np.save(tmp_path / f"{name}.npy", draw.integers(0, 100, shape).astype(dtype))
    result = multiply(tmp_path, "--check")
    assert result.exit_code == 0, result.output
    assert "agrees with" in result.output
    c, wanted = np.load(tmp_path / "c.npy"), expected(tmp_path)
    assert c.dtype == wanted.dtype
    np.testing.assert_array_equal(c, wanted, strict=True)


def test_run_takes_columns_first_and_foreign_byte_order(files: Path) -> None:
    np.save(files / "a.npy", np.asfortranarray(np.load(files / "a.npy")))
    np.save(files / "b.npy", np.load(files / "b.npy").astype(">f4"))
    assert multiply(files, "--check").exit_code == 0
    np.testing.assert_allclose(np.load(files / "c.npy"), expected(files), rtol=1e-5, atol=1e-5)


def test_run_may_replace_its_own_input(files: Path) -> None:
    np.save(files / "a.npy", np.eye(7, dtype=np.float32) * 2)
    wanted = expected(files)
    command = "run", files / "a.npy", files / "b.npy", "-o", files / "b.npy"
    assert "b.npy is an input, which would be overwritten" in refused(*command)
    assert call(*command, "--overwrite-input").exit_code == 0
    np.testing.assert_array_equal(np.load(files / "b.npy"), wanted)


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "i4"])
def test_run_takes_the_raw_bytes_of_formats_that_numpy_has_no_name_for(files: Path, name: str) -> None:
    x = np.random.default_rng(3).integers(-4, 5, (5, 7)).astype(formats.get(name).dtype)
    np.save(files / "a.npy", x)
    np.save(files / "b.npy", np.ones((7, 3), np.int8 if name == "i4" else np.float32))
    assert "name the format with --a or --b" in refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy")
    assert multiply(files, "--check", "--a", name).exit_code == 0
    np.testing.assert_array_equal(np.load(files / "c.npy"), np.tile(x.astype(np.int8).sum(1)[:, None], 3))
    assert "elements of" in refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy", "--a", "f64")
    assert "format of raw bytes only" in refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy",
                                                 "--a", name, "--b", name)


@pytest.mark.parametrize("dtype", ["?", "i8", "f2", "c8"])
def test_a_wrong_product_of_any_kind_is_noticed(dtype: str) -> None:
    a = np.random.default_rng(4).integers(0, 2, (6, 7)).astype(dtype)
    c = np.matmul(a, a.T)
    npy._check(a, a.T, c)
    c[3, 2] = ~c[3, 2] if dtype == "?" else c[3, 2] + 1
    with pytest.raises(command.BadInput, match="the check against"):
        npy._check(a, a.T, c)


def test_run_gives_the_output_the_permissions_of_any_new_file(files: Path) -> None:
    multiply(files)
    (files / "new").touch()
    assert (files / "c.npy").stat().st_mode == (files / "new").stat().st_mode


def broken(kind: str, path: Path) -> None:
    good = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("1 2 3\n4 5 6\n" * 20)
    elif kind == "truncated":
        path.write_bytes(good[:-5])
    elif kind == "no data":
        path.write_bytes(good[:90])
    elif kind == "header cut":
        path.write_bytes(good[:9])
    elif kind == "objects":
        np.save(path, np.array([[{}]], object), allow_pickle=True)
    elif kind == "archive":
        with open(path, "wb") as file:
            np.savez(file, x=np.ones(2))
    elif kind == "raw":
        np.save(path, np.zeros((5, 7), "V2"))
    elif kind == "times":
        np.save(path, np.zeros((5, 7), "M8[s]"))
    elif kind == "records":
        np.save(path, np.zeros((5, 7), [("x", "f4")]))
    elif kind == "scalar":
        np.save(path, np.float32(3))
    elif kind == "forbidden":
        path.chmod(0)


BROKEN = {
    "missing": "cannot be read: no such file or directory",
    "directory": "is a directory",
    "empty": "is empty",
    "text": "this is not a .npy file",
    "truncated": "truncated",
    "no data": "truncated",
    "header cut": "truncated",
    "objects": "it holds Python objects",
    "archive": "is an archive",
    "raw": "holds raw bytes (|V2)",
    "times": "holds datetime64[s], which cannot be multiplied",
    "records": "holds records",
    "scalar": "holds a single number",
    "forbidden": "cannot be read: permission denied",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_bad_file_is_one_line(files: Path, kind: str) -> None:
    broken(kind, files / "a.npy")
    if kind == "forbidden" and os.access(files / "a.npy", os.R_OK):
        pytest.skip("root reads everything")
    (files / "c.npy").write_text("precious")
    message = refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy")
    assert message.startswith(f"tilewright: {files / 'a.npy'}")
    assert BROKEN[kind] in message
    assert (files / "c.npy").read_text() == "precious"
    assert temporaries(files) == []


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "words"),
    [((5, 7), (6, 3), "a has 7 columns and b has 6 rows"), ((5, 7), (6,), "must agree in k"),
     ((2, 5, 7), (3, 7, 2), "the leading axes of a and b must broadcast")],
)
def test_shapes_that_do_not_fit_are_one_line(files: Path, shape_a: Any, shape_b: Any, words: str) -> None:
    np.save(files / "a.npy", np.ones(shape_a, np.float32))
    np.save(files / "b.npy", np.ones(shape_b, np.float32))
    message = refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy")
    assert words in message
    assert str(shape_a) in message
    assert not (files / "c.npy").exists()


def test_an_output_that_cannot_be_written_is_one_line(files: Path) -> None:
    assert "it is a directory" in refused("run", files / "a.npy", files / "b.npy", "-o", files)
    assert "no directory" in refused("run", files / "a.npy", files / "b.npy", "-o", files / "x" / "c.npy")


@pytest.mark.parametrize(("module", "name", "does", "words"), [
    (np, "save", OSError(28, "No space left on device"), "cannot be written: no space left on device"),
    (tilewright, "matmul", None, "the check against float64 failed, and nothing was written"),
    (tilewright, "matmul", KeyboardInterrupt(), "interrupted; nothing was written"),
], ids=["full disk", "wrong", "interrupted"])
def test_what_ends_a_run_leaves_no_file(files: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str,
                                        does: BaseException | None, words: str) -> None:
    def fails(*given: Any, **_: Any) -> Any:
        if does is None or not len(given[0]):       # what asks for the dtype
            return np.full((5, 3), 1e6, np.float32)
        raise does

    monkeypatch.setattr(module, name, fails if module is tilewright else lambda *_: fails("x"))
    assert words in multiply(files, "--check").stderr
    assert not (files / "c.npy").exists()
    assert temporaries(files) == []


def test_a_traceback_can_be_had(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")
    assert isinstance(call("run", "nowhere.npy", files / "b.npy", "-o", files / "c.npy").exception, FileNotFoundError)


# ---- options


def test_lists_may_be_written_with_commas_or_repeated() -> None:
    assert common.listed(["f32,f64", " nn "], []) == ["f32", "f64", "nn"]
    assert common.listed(None, ["x"]) == common.listed([], ["x"]) == ["x"]
    assert common.numbers(["1,all", "1"], [], "--threads", {"all": 8}) == [1, 8]
    for bad in ("0", "-1", "two", "1.5"):
        with pytest.raises(command.BadInput, match=f"--threads takes a positive whole number or 'all'.*got {bad!r}"):
            common.numbers([bad], [], "--threads", {"all": 8})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--threads", "none"), "--threads takes"),
        (("--suite", "round"), "unknown suite 'round'"),
        (("--dtype", "f16"), "unknown dtype 'f16'"),
        (("--target", "sse"), "target must be native or avx2"),
        (("--json", "no/such/folder/x.json"), "there is no directory no/such/folder"),
        (("ladder", "--device", "tpu"), "--device must be cpu"),
        (("--peers", "foo"), "unknown peer 'foo'; the peers are numpy, openblas, blis, torch, mkl"),
        (("ladder", "--peers", "numpy,foo"), "unknown peer 'foo'"),
        (("ladder", "--target", "sse"), "target must be native or avx2"),
        (("ladder", "--sizes", "0"), "--sizes takes a positive whole number"),
        (("formats", "--only", "bf16,half"), "no product of 'half' is timed; name a format (f64, f32, f16, bf16, "),
        (("formats", "--sizes", "1k"), "--sizes takes a positive whole number"),
        (("formats", "--threads", "-1"), "--threads takes"),
        (("formats", "--peers", "cublas"), "unknown peer 'cublas'; the peers are numpy, openblas, blis, torch, mkl"),
        (("formats", "--target", "amx"), "target must be native or avx2"),
        (("formats", "--json", "no/such/folder/x.json"), "there is no directory no/such/folder"),
    ],
)
def test_bench_refuses_before_it_measures(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused("bench", *arguments)


def test_words_that_users_type_for_formats_and_targets() -> None:
    for words, names in (("fp32", "f32"), ("half", "f16"), ("float32-FP16-double", "f32-f16-f64"), ("int8", "i8"),
                         ("bfloat16", "bf16"), ("mxfp4_e2m1", "mxfp4")):
        assert common.product(words) == names
    said = [call("plan", 8, 8, 8, "-t", "x86-avx2", "-d", word).stdout for word in ("fp16", "f16")]
    assert said[0] == said[1]
    for dtype in ("fp8", "mxfp5", "f33"):
        said = refused("plan", 8, 8, 8, "-d", dtype)
        assert re.match("tilewright: --dtype must be one of f64, f32, .* mxfp4, nvfp4, not ", said)
    for options, words in ((("--layout", "xx"), "layout must be one of"),
                           (("--check", "fast please"), "not a plan: 'fast please'")):
        assert words in refused("plan", 8, 8, 8, *options)
    said = refused("plan", 8, 8, 8, "-t", "h1000")
    assert re.search(r"no target 'h1000'; there are: .*\(or sm_90, hopper, h200\); h100; .* or native, nvidia", said)


def test_quantize_explains_a_word_with_several_meanings() -> None:
    for word, meant in (("fp8", "e4m3fn or .* with a scale for every 32 numbers, mxfp8"), ("fp4", "e2m1.*, mxfp4")):
        with pytest.raises(ValueError, match=f"not '{word}'; .*{word} may stand for {meant}"):
            tilewright.quantize(np.ones((4, 64), "f4"), word)


# ---- cache


def test_cache_info_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernel.o").write_bytes(b"x" * 2048)
    said = call("cache", "info").output
    assert str(tmp_path) in said
    assert "2 KiB" in said
    assert call("cache", "clear").output == "1 kernel removed\n"
    assert call("cache", "clear").output == "0 kernels removed\n"


# ---- plan, doctor


def test_plan_shows_the_plan_and_its_prediction() -> None:
    said = call("plan", 512, 512, 512, "--target", "x86-avx2", "--threads", 2).output
    assert "gemm_f32_nn_512x512x512 on x86-avx2, 2 threads" in said
    assert "6x16" in said
    assert call("plan", 0, 4, 4).exit_code == 0


def test_plan_and_explain_predict_the_same_of_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default on matmul's threads, from the machine's ceilings or the model's defaults, whichever both say."""
    import tilewright as tw
    from tests.helpers.ceilings import FAST
    from tilewright.lab.measure import probes

    here = tw.detect().name
    threads = f"{tw.get_num_threads()} thread"
    fast = dataclasses.replace(FAST, flops=dict.fromkeys(tw.targets.names("cpu"), FAST.flops["x86-avx2"]))
    said: dict[str, str] = {}
    sources = {"the model's defaults": None, "the ceilings of this machine, measured on 2026-01-01": fast}
    for source, known in sources.items():
        monkeypatch.setattr(probes, "remembered", lambda known=known: known)
        plan, explained = (call(command, 1000, 600, 800).output for command in ("plan", "explain"))
        assert f"{here}, {threads}" in plan.splitlines()[0]
        assert threads in explained.splitlines()[0]
        assert source in " ".join(plan.split())
        assert source in explained
        (rate,) = re.findall(r"predicted .* ([0-9.]+) GFLOP/s", explained)
        assert f" {rate} " in plan
        said[source] = rate
    assert len(set(said.values())) == 2


def test_plan_refuses_what_does_not_fit_with_the_arithmetic() -> None:
    result = call("plan", 512, 512, 512, "-t", "x86-avx2", "--check", "packed 16x32 mc=96 kc=256 nc=4096")
    assert result.exit_code == 1
    assert "16*4 + 4 + 1 = 69 registers, x86-avx2 has 16" in result.output
    good = call("plan", 512, 512, 512, "-t", "x86-avx2", "--check", "packed 6x16 mc=96 kc=256 nc=4096")
    assert good.exit_code == 0, good.output


def test_a_batch_is_planned_compiled_and_simulated() -> None:
    sizes = (4, 5, 6, "--batch", 70, "--target", "sm_90a")
    plan = next(line for line in call("plan", *sizes).output.splitlines() if line.startswith("small 4x5x6 "))
    assert ".visible .entry small_f32_nn_4x5x6" in call("emit", *sizes).output
    assert "the product is exact" in call("simulate", *sizes, "--plan", plan).output
    assert "70 products in one launch" in call("explain", *sizes).output
    assert "give --batch or --step, not both" in refused("emit", "--step", "naive", "--batch", 2, "-t", "sm_90a")


def test_plan_for_a_gpu() -> None:
    said = call("plan", 4096, 4096, 4096, "--target", "h200", "--top", 3).output
    assert "gemm_f32_nn_4096x4096x4096 on sm_90a (NVIDIA H200, 132 multiprocessors)" in said
    assert said.count("simt ") == 3
    assert "TFLOP/s" in said
    for chip in ("sm_80", "x86-avx2"):
        assert "it takes 0 operations, and there is nothing to plan" in call("plan", 0, 4, 4, "--target", chip).output
    plan = "simt 128x128x8 warp=32x64 thread=8x8 stages=2 copy=registers vector=4"
    assert call("plan", 512, 512, 512, "-t", "sm_75", "--check", plan).exit_code == 0
    result = call("plan", 512, 512, 511, "-t", "sm_75", "--check", plan)
    assert result.exit_code == 1
    assert "not legal: vector = 4 elements are copied at once, and the operands allow 1" in result.output
    said = refused("plan", 8, 8, 8, "-t", "sm_80", "--check", "packed 6x16")
    assert "plan packed 6x16 is for a CPU, and sm_80 is an NVIDIA GPU" in said


def test_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    said = call("plan", 256, 256, 256, "--target", "cuda").output
    assert "on sm_90a (NVIDIA fake H200, 132 multiprocessors)" in said
    monkeypatch.setattr(driver.library, "api", lambda: nothing())
    monkeypatch.setattr("tilewright.runtime.cuda.driver.device.found", {})
    assert "no driver" in refused("plan", 8, 8, 8, "--target", "cuda")


def nothing() -> Any:
    raise driver.Unavailable("no driver")


def test_doctor_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "why_not", lambda: "the NVIDIA driver sees no GPU")
    said = call("doctor", "--no-measure").output
    assert "kernels are emitted and simulated only: the NVIDIA driver sees no GPU" in said
    assert "sm_75, sm_80, sm_86, sm_89, sm_90a" in said
    found = json.loads(call("doctor", "--no-measure", "--json").output)["gpus"]
    assert found["devices"] == []
    assert [t["name"] for t in found["targets"]] == targets.names("gpu")


def test_doctor_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, devices=2)
    said = call("doctor", "--no-measure").output
    assert said.count("NVIDIA fake H200") == 2
    assert "sm_90a, 132 multiprocessors at up to 1.98 GHz, 141 GiB at 4917 GB/s, L2 60 MiB" in said
    device = json.loads(call("doctor", "--no-measure", "--json").output)["gpus"]["devices"][1]
    assert (device["name"], device["memory"], device["runnable"]) == ("sm_90a", 141 << 30, True)
    install(monkeypatch).attributes["COMPUTE_CAPABILITY_MAJOR"] = 6
    assert "has compute capability 6.0; tilewright needs 7.5" in call("doctor", "--no-measure").output


# ---- emit, asm


def test_emit_writes_every_form(tmp_path: Path) -> None:
    printed = call("emit", 20, 30, 40, "--target", "neon", "--llvm").output
    assert "define void @" in printed
    assert "fmla" in call("emit", 20, 30, 40, "--target", "neon").output
    for suffix, start in ((".ll", printed[:20].encode()), (".s", b"\t"), (".o", b"\x7fELF")):
        path = tmp_path / f"kernel{suffix}"
        assert call("emit", 20, 30, 40, "--target", "neon", "-o", path).exit_code == 0
        assert path.read_bytes().startswith(start)
    words = "for neon --output must end in .ll (IR), .s (assembly) or .o (object code), got"
    assert words in refused("emit", 8, 8, 8, "-t", "neon", "-o", tmp_path / "kernel.ptx")
    assert "cannot run" in refused("emit", 8, 8, 8, "-t", "x86-avx2", "--plan", "packed 16x32 mc=96 kc=256 nc=4096")


def dot(problem: Any, chip: Any, plan: Any) -> Any:
    """Compiled, a kernel for a GPU that is not a whole product."""
    k = Kernel("dot", threads=32, n=i32, a=ptr(f32), b=ptr(f32))
    n, a, b = k.args
    total = k.variable(f32, 0.0)
    with k.loop(n, unroll=False) as i:
        total.set(k.fma(a[i * 32 + k.thread[0]], b[i], total.get()))
    a[k.thread[0]] = k.warp_sum(total.get())
    return compiled(k.function, chip)


def test_emit_writes_every_form_for_amd(tmp_path: Path) -> None:
    """A kernel that is no GEMM, by name; a manifest beside the code object."""
    assert "define amdgpu_kernel void @" in call("emit", "--kernel", "axpy", "--target", "gfx950", "--llvm").output
    assert "axpy_f32:" in call("emit", "--kernel", "axpy", "--target", "gfx950").output
    assert call("emit", "--kernel", "axpy", "-t", "gfx950", "-o", tmp_path / "axpy.s").exit_code == 0
    assert "axpy_f32:" in (tmp_path / "axpy.s").read_text()
    result = call("emit", "--kernel", "axpy", "-t", "gfx950", "-o", tmp_path / "axpy.hsaco")
    if "pip install ziglang" in result.output:
        pytest.skip("there is no linker for AMD GPUs")
    assert (tmp_path / "axpy.hsaco").read_bytes().startswith(b"\x7fELF")
    told = json.loads((tmp_path / "axpy.json").read_text())
    assert (told["symbol"], told["grid"], told["workgroup"]) == ("axpy_f32", ["(n + 255) // 256", 1, 1], 256)
    assert [(x["name"], x["type"], x["offset"]) for x in told["arguments"]] == [
        ("n", "i64", 0), ("alpha", "f32", 8), ("x", "ptr", 16), ("y", "ptr", 24)]


def test_emit_names_kernels_for_amd_only(tmp_path: Path) -> None:
    assert "must end in .ll (IR), .s (assembly) or .hsaco" in refused(
        "emit", "--kernel", "f16", "-t", "gfx942", "-o", tmp_path / "f16.o")
    assert "there are: axpy, f32, f16, fp8" in refused("emit", "--kernel", "f17", "-t", "gfx942")
    assert "gfx942 lacks the instruction of step 5 mxfp4" in refused("emit", "--kernel", "mxfp4", "-t", "gfx942")
    assert "--kernel is for AMD's GPUs" in refused("emit", "--kernel", "axpy", "-t", "neon")
    assert "M N K or --kernel, not both" in refused("emit", 8, 8, 8, "--kernel", "axpy", "-t", "gfx942")
    for name in ("emit", "asm"):
        assert "give M, N and K" in refused(name, 8, 8, "-t", "neon")


def test_asm_of_an_amd_kernel() -> None:
    said = call("asm", "--kernel", "fp8", "-t", "gfx942").output
    assert "no spills, 0 bytes of scratch" in said
    assert "has no loop" in said
    assert "v_mfma_f32_32x32x16_fp8_fp8" in call("asm", "--kernel", "fp8", "-t", "gfx942", "--whole").output
    assert call("asm", "--kernel", "axpy", "-t", "gfx942", "--list").output.split() == ["axpy_f32"]


def test_emit_writes_every_form_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilewright, "compile", dot)
    assert "define ptx_kernel void @" in call("emit", 20, 30, 40, "--target", "h200", "--llvm").output
    assert ".visible .entry dot(" in call("emit", 20, 30, 40, "--target", "h200").output
    for suffix, start in ((".ll", b"; ModuleID"), (".ptx", b"//"), (".cubin", b"\x7fELF")):
        path = tmp_path / f"kernel{suffix}"
        result = call("emit", 20, 30, 40, "--target", "sm_80", "-o", path)
        if suffix == ".cubin" and "ptxas is not installed" in result.stderr:
            pytest.skip("ptxas is not installed: the cubin was refused in a sentence")
        assert result.exit_code == 0, result.output
        assert path.read_bytes().startswith(start)
    words = "for sm_80 --output must end in .ll (IR), .ptx (PTX) or .cubin (machine code, by ptxas), got"
    assert words in refused("emit", 8, 8, 8, "-t", "sm_80", "-o", tmp_path / "kernel.s")
    assert "there is no target 'sm_70'; there are: x86-avx512" in refused("emit", 8, 8, 8, "-t", "sm_70")


def test_asm_shows_the_loop_of_a_gpu_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilewright, "compile", dot)
    said = call("asm", 8, 8, 8, "--target", "sm_75").output
    assert '.pragma "nounroll"' not in said
    assert "fma.rn.f32" in said
    assert "shfl" not in said
    assert "dot: 1 FMAs, 2 global loads, " in said
    if "ptxas is not installed" not in said:
        assert "registers a thread, 0 bytes of spills stored and 0 loaded" in said
        assert "CTAs of 32 threads and 0 bytes of shared memory, 16 on a multiprocessor" in said
    assert call("asm", 8, 8, 8, "--target", "sm_75", "--list").output == "dot\n"
    assert "shfl" in call("asm", 8, 8, 8, "--target", "sm_75", "--whole").output
    words = "no kernel nonsense in this PTX; there are: dot"
    assert words in refused("asm", 8, 8, 8, "--target", "sm_75", "--function", "nonsense")
    monkeypatch.setattr(ptxas, "find", lambda: missing())
    assert "registers and spills are not known: nowhere" in call("asm", 8, 8, 8, "--target", "sm_75").output


def missing() -> Path:
    raise ptxas.Missing("nowhere")


def test_what_is_tuned_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    monkeypatch.setattr("tilewright.runtime.hip.driver.library.loaded", None)
    words = "gfx950 code cannot run on this machine: AMD GPUs need the package hip-python"
    assert words in refused("tune", "measure", 64, 64, 64, "--target", "gfx950")


def test_asm_shows_the_hot_loop_of_any_function() -> None:
    said = call("asm", 96, 96, 96, "--target", "x86-avx2").output
    assert "vfmadd" in said
    assert "12 vector FMAs" in said
    assert "0 spills" in said
    names = call("asm", 96, 96, 96, "--target", "x86-avx2", "--list").output.split()
    assert len(names) >= 2
    assert names[-1] in call("asm", 96, 96, 96, "--target", "x86-avx2", "--function", names[-1]).output
    whole = call("asm", 96, 96, 96, "--target", "x86-avx2", "--whole").output
    assert all(f"{name}:" in whole for name in names)
    assert "no function nonsense" in refused("asm", 96, 96, 96, "--function", "nonsense")
    assert "there is no code" in refused("asm", 0, 1, 1)


def test_any_damaged_file_is_refused_in_a_line(files: Path) -> None:
    """NumPy raises what zipfile, tokenize and memmap happen to raise."""
    start, ends = (files / "a.npy").read_bytes()[:8], b"\n"
    headers = [b"{'descr': '<f4', 'fortran_order': False, 'shape': (3", b"\\\n", b"(" * 300,
               b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }"]
    damaged = [b"PK\x03\x04" + bytes(40), b"PK\x05\x06", *(
        start + (len(h) + 1).to_bytes(2, "little") + h + ends + bytes(48) for h in headers)]
    for content in damaged:
        (files / "a.npy").write_bytes(content)
        said = refused("run", files / "a.npy", files / "b.npy", "-o", files / "c.npy")
        assert said.startswith(f"tilewright: {files / 'a.npy'}"), said
