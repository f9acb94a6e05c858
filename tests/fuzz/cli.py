"""The command line with random arguments and damaged files: status 0, 1 or 2, and never a traceback.

Only commands that end soon: what measures for minutes is left out, as are large products in the simulator.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.plans import SEEDS, mutated
from tests.helpers.command_line import call
from tilewright import formats, targets

SIZES = ("0", "1", "2", "3", "8", "17", "33", "64", "100", "-5", "x", "1e3", "", "99999999999999999999", "3.5", "0x10")
DTYPES = (*formats.FORMATS, *formats.BLOCK_FORMATS, "float32", "f4", "", "fp8", "x")
TARGETS = (*targets.names(), "native", "h200", "mi325x", "cuda", "", "x86", "sm_0")
OPTIONS = {"--dtype": DTYPES, "--layout": ("nn", "nt", "tn", "tt", "nx", "", "n"), "--target": TARGETS,
           "--threads": ("1000000000", "1", "2", "0", "-1", "all", "x", "1,2", "64"), "--plan": (), "--json": (),
           "--all": (), "--help": (), "--whole": (), "--list": (), "--function": ("gemm", "", "x"),
           "--nonsense": ("1",)}
COMMANDS = {  # whether sizes follow
    "plan": True, "explain": True, "emit": True, "asm": True, "simulate": True, "formats": False, "mfma": False,
    "peak": False, "run": False, "tune show": False, "tune merge": False, "tune clear": False, "tune": False,
    "cache info": False, "cache": False, "ladder amd": False, "nothing": False, "bench --nothing": False,
}
FILES = ("good", "good", "good", "header", "cut", "random", "flip", "empty", "npz", "zip", "objects", "scalar", "shape",
         "text", "directory", "missing", "huge", "fortran", "integers", "unreadable", "big-endian", "zero")
HUGE = "99999999999, 99999999999"
SHAPES = ("True, 3", "3", "-3, 3", "3.5, 3", "0, 3", "3, 3), (3, 3", "2L, 3L", HUGE, "()")
HEADERS = (*(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}" for shape in SHAPES),
           *(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (2, 2), }}" for descr in (
               "5", "'<V0'", "[('a', '<f4')]", "'<f4'" * 99, "'O'", "'<f99'")),
           "{'descr': '<f4', 'shape': (3", "[]", "'", "(" * 300, "\\\n", "lambda: 0")


def draw(rng: Random) -> Case:
    command = "run" if rng.random() < 0.2 else rng.choice([*COMMANDS])
    words = command.split()
    files = ["", ""]
    if command == "run":
        files = [rng.choice(FILES), rng.choice(FILES)]
        words += ["a.npy", "b.npy", "-o", rng.choice(["c.npy", "c.npy", "no/where.npy", "a.npy", ".", "c"])]
        words += ["--check"] * (rng.random() < 0.3)
    elif command == "formats":
        words += rng.sample([*DTYPES, "0x3f", "-1", "0b1", "1" * 40, "0x", "é"], rng.randint(0, 2))
    elif command in ("mfma", "peak"):
        words += rng.sample(["list", "h100", "gfx942", "gfx950", "v_mfma_f32_32x32x8_f16", "16x16x16_f16", "x", "",
                             "f16", "--json", "--target"], rng.randint(0, 2))
    elif command == "tune merge":
        words += [rng.choice(["a.npy", "none", "."])]
        files[0] = rng.choice(("text", "random", "json", "deep", "large"))
    sides = SIZES[:8] if command == "simulate" else SIZES
    words += [rng.choice(sides[:9] if rng.random() < 0.8 else sides) for _ in range(3 * COMMANDS[command])]
    for _ in range(rng.choice([0, 1, 2, 3]) if command not in ("tune", "run") else 0):
        option = rng.choice([*OPTIONS])
        words.append(option)
        if option == "--plan":
            words.append(mutated(rng, rng.choice(SEEDS[rng.choice([*SEEDS])])))
        elif OPTIONS[option]:
            words.append(rng.choice(OPTIONS[option]))
    if command in ("emit", "simulate", "asm") and rng.random() < 0.3:
        words += ["-o", rng.choice(["x.ll", "x.s", "x.o", "x.ptx", "x.hsaco", "x", "no/x.ll", "."])]
    if rng.random() < 0.1:
        odd = rng.choice(["--", "-", "--help", "-h", "", "\u00e9", "--version", "-x"])
        words.insert(rng.randrange(len(words) + 1), odd)
    return {"words": words, "files": files, "data": rng.randrange(2**31)}


def check(case: Case) -> None:
    if "cuda" in case["words"] and case["words"][:1] != ["plan"]:
        return
    saved = os.getcwd(), os.environ.get("TILEWRIGHT_TUNE_DB")
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as folder:
        for kind, name in zip(case["files"], ("a.npy", "b.npy")):
            if kind:
                write(Path(folder, name), kind, Random(f"{case['data']} {name}"))
        os.chdir(folder)
        os.environ["TILEWRIGHT_TUNE_DB"] = str(Path(folder, "tuning.jsonl"))
        try:
            result = call(*case["words"])
        finally:
            os.chdir(saved[0])
            os.environ["TILEWRIGHT_TUNE_DB"] = saved[1] or "off"
        left = [path.name for path in Path(folder).iterdir() if path.suffix == ".part"]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"an exception escapes from {case['words']}") from result.exception
    assert result.exit_code in (0, 1, 2), f"status {result.exit_code}"
    assert "Traceback" not in result.output, result.output[-2000:]
    assert result.exit_code == 0 or result.output.strip(), "refused without a word"
    assert not left, f"left behind: {left}"


def write(path: Path, kind: str, rng: Random) -> None:
    """A .npy file of this kind, of a matrix that may be multiplied by its like if it is a good one."""
    matrix = np.arange(9, dtype=rng.choice(["f4", "f8"])).reshape(3, 3)
    if kind == "missing":
        return
    if kind == "directory":
        path.mkdir()
        return
    if kind in ("npz", "zip"):
        with open(path, "wb") as file:
            np.savez(file, a=matrix)
        if kind == "zip":
            path.write_bytes(path.read_bytes()[: rng.choice([5, 40, 100])])
        return
    if kind in ("text", "json", "deep", "large"):
        row = '{"target": "x86-avx2", "m": %s}\n'
        path.write_text({"text": "1 2 3\n", "json": row % 5, "deep": "[" * 100_000, "large": row % 10**30}[kind])
        return
    other = {"objects": lambda: np.array([{}, 1], object), "scalar": lambda: np.float32(3), "zero": lambda: matrix[:0],
             "shape": lambda: np.ones((2, 5, 4), "f4"), "fortran": lambda: np.asfortranarray(matrix),
             "integers": lambda: matrix.astype(rng.choice(["i4", "c8", "f2", "S3", "?"])),
             "big-endian": lambda: matrix.astype(">f4")}
    np.save(path, other.get(kind, lambda: matrix)(), allow_pickle=True)
    data = path.read_bytes()
    if kind in ("header", "huge"):
        text = (rng.choice(HEADERS) if kind == "header" else next(x for x in HEADERS if HUGE in x)).encode("latin1")
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        data = data[:8] + len(text).to_bytes(2, "little") + text + data[-36:]
    elif kind == "cut":
        data = data[: rng.randrange(len(data))]
    elif kind == "random":
        data = rng.choice([b"", data[:6], data[:8]]) + rng.randbytes(200)
    elif kind == "flip":
        for _ in range(rng.choice([1, 2, 5])):
            at = rng.randrange(min(len(data), 128))
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1:]
    elif kind == "empty":
        data = b""
    path.write_bytes(data)
    if kind == "unreadable":
        path.chmod(0)


FUZZER = Fuzzer("cli", draw, check, limit_s=200)
