"""Damaged kernels on disk and damaged tuning results: a product is right all the same, ends, and changes nothing else.

A case copies a cache that holds everything, spoils some of its entries or the file of tuning results, and multiplies
in a child. Beside them lie files to which entries may be links: these must stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import tilewright as tw
from tests.fuzz.children import in_child
from tests.fuzz.driver import Case, Fuzzer
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.measured import store
from tilewright.targets import detect

ENTRIES = ("truncate", "empty", "flip", "random", "swap", "rehash", "fifo", "link", "dangling", "directory", "mode",
           "owner", "unreadable", "grow")
FOLDERS = ("open", "read-only", "file", "link", "foreign")
TUNINGS = ("random", "truncate", "schema", "blobs", "absurd", "future", "directory", "fifo", "empty", "text",
           "link", "mode", "owner")
ABSURD = ("packed 6x16 mc=100000000 kc=100000000 nc=100000000", "packed 6x16 mc=99999999999999999999999 kc=1 nc=16",
          "in_place 6x16 ways=1000000x1000000x1", "in_place 6x16 kc=-1", "in_place 0x0", "dots 1000x1000",
          "future 14x32 kc=3 zc=9", "future 6x16", "", "\0", "in_place", "stream 3x4 jr_ways=5")
PRODUCTS = ((20, 30, 40, "f4"), (70, 80, 90, "f4"), (9, 8, 7, "f8"))


def draw(rng: Random) -> Case:
    what = rng.random()
    entries = [rng.choice(ENTRIES) for _ in range(rng.choice([1, 1, 2, 6]))] if what < 0.55 else []
    return {"entries": entries, "every": rng.random() < 0.3,
            "folder": rng.choice(FOLDERS) if 0.55 <= what < 0.65 else None,
            "tuning": rng.choice(TUNINGS) if what >= 0.65 else None, "data": rng.randrange(2**31)}


def check(case: Case) -> None:
    rng = Random(case["data"])
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        folder, outside, tuning = root / "cache", root / "outside", root / "tuning.jsonl"
        shutil.copytree(_whole(), folder)
        outside.mkdir(mode=0o700)
        for number in range(3):
            (outside / f"{number}").write_bytes(rng.randbytes(500))
        entries = sorted(folder.glob("*.o"))
        for kind in case["entries"]:
            for path in entries if case["every"] else [rng.choice(entries)]:
                _spoil(path, kind, rng, outside, entries)
        if case["folder"] is not None:
            _spoil_folder(folder, case["folder"], outside)
        if case["tuning"] is not None:
            _spoil_tuning(tuning, case["tuning"], rng, outside)
        before = _contents(outside)
        try:
            in_child(lambda: _multiply(folder, tuning if case["tuning"] is not None else None), 200)
        finally:
            if folder.is_dir():
                folder.chmod(0o700)
        assert _contents(outside) == before, "files outside the cache were changed"


def _multiply(folder: Path, tuning: Path | None) -> None:
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(folder)
    os.environ["TILEWRIGHT_TUNE_DB"] = "off" if tuning is None else str(tuning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        products()


def products() -> None:
    for m, n, k, dtype in PRODUCTS:
        data = np.random.default_rng(m)
        a, b = (data.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
        assert np.array_equal(tw.matmul(a, b, threads=1), a @ b), "a product is wrong"
        assert np.array_equal(tw.matmul(a, b), a @ b), "a small product is wrong"


@cache
def _whole() -> Path:
    """A cache with all kernels of the products, removed with the worker's directory."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-fuzz-"))
    in_child(lambda: _multiply(folder, None), 400)
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _contents(folder: Path) -> list[tuple[str, bytes, int, int]]:
    return [(path.name, path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
            for path in sorted(folder.iterdir())]


def _spoil(path: Path, kind: str, rng: Random, outside: Path, entries: list[Path]) -> None:
    if not path.is_file() or path.is_symlink():
        return  # spoilt already
    data = path.read_bytes()
    if kind in ("fifo", "link", "dangling", "directory"):
        path.unlink()
    if kind == "truncate":
        path.write_bytes(data[: rng.randrange(len(data) or 1)])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "grow":
        path.write_bytes(data + rng.randbytes(rng.choice([1, 4096])))
    elif kind == "flip" and data:
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1:])
    elif kind == "random":
        path.write_bytes(rng.randbytes(len(data)))
    elif kind == "rehash":  # a digest of the content alone, which proves nothing of who wrote it, or for what
        content = rng.choice([rng.randbytes(1000), data[32:1000], b"\x7fELF" + bytes(2000), data[32:-1]])
        path.write_bytes(hashlib.sha256(content).digest() + content)
    elif kind == "swap":
        other = rng.choice(entries)
        if other.is_file() and not other.is_symlink():
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "link":
        path.symlink_to(outside / rng.choice("012"))
    elif kind == "dangling":
        path.symlink_to(outside / "none" / "nothing")
    elif kind == "directory":
        path.mkdir()
    elif kind == "mode":
        path.chmod(0o666)
    elif kind == "unreadable":
        path.chmod(0)
    elif kind == "owner" and os.getuid() == 0:
        os.chown(path, 65534, 65534)


def _spoil_folder(folder: Path, kind: str, outside: Path) -> None:
    if kind == "open":
        folder.chmod(0o777)
    elif kind == "read-only":
        folder.chmod(0o500)
    elif kind == "foreign" and os.getuid() == 0:
        os.chown(folder, 65534, 65534)
    elif kind in ("file", "link"):
        shutil.rmtree(folder)
        if kind == "file":
            folder.write_bytes(b"not a directory")
        else:
            folder.symlink_to(outside / "0")


def _spoil_tuning(path: Path, kind: str, rng: Random, outside: Path) -> None:
    if kind == "random":
        path.write_bytes(rng.randbytes(5000))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("{}\n" * 10)
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "link":
        path.symlink_to(outside / "0")
    else:
        fields: dict[str, object] = {}
        if kind == "blobs":
            fields = {"plan": rng.choice([rng.randbytes(20).decode("latin1"), 7, None, ["x"]])}
        elif kind in ("absurd", "future"):
            fields = {"plan": rng.choice(ABSURD) if kind == "absurd" else ABSURD[6]}
        lines = [json.dumps({"schema": rng.choice([0, 2, 99, -1]) if kind == "schema" else 1}), *_rows(fields)]
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o600)
        if kind == "truncate":
            data = path.read_bytes()
            at = rng.randrange(100, len(data))
            path.write_bytes(data[:at] if rng.random() < 0.5 else data[:at] + rng.randbytes(len(data) - at))
        elif kind == "mode":
            path.chmod(0o666)
        elif kind == "owner" and os.getuid() == 0:
            os.chown(path, 65534, 65534)


def _rows(fields: dict[str, object]) -> Iterator[str]:
    """Tuning results for each of the products: every one a plan that can run, but for these fields."""
    target, names = detect(), [*store.PROBLEM, "plan", "role"]
    for m, n, k, dtype in PRODUCTS:
        shape = Shape({"f4": "f32", "f8": "f64"}[dtype], m, n, k, "rows", "rows", 1)
        values = (target.name, target.model, *shape, "in_place 4x8", "best")
        yield json.dumps({"ratio": 1.0, "date": "2026"} | dict(zip(names, values)) | fields)


PLAIN: Case = {"every": False}
FUZZER = Fuzzer("caches", draw, check, PLAIN, limit_s=700)
