"""The cache of compiled kernels: many processes, killed writers, damage, and directories that cannot be written."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

from tilewright.compiler import cache

CONTENT = b"machine code" * 1000


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """A directory per test, of which nobody has been warned."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(cache, "_swept", set())
    return tmp_path


def entry(content=CONTENT):
    return hashlib.sha256(content).digest() + content


def never():
    raise AssertionError("the entry was there, and was built all the same")


def python(script, **environment):
    """A process that runs a script."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_built_once(own_directory):
    assert cache.fetch("x", lambda: CONTENT) == CONTENT
    assert cache.fetch("x", never) == CONTENT
    assert (own_directory / "x.o").read_bytes() == entry()
    assert [path.name for path in own_directory.iterdir()] == ["x.o"]


def test_a_directory_is_made(own_directory, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(own_directory / "a" / "b"))
    cache.fetch("x", lambda: CONTENT)
    assert cache.fetch("x", never) == CONTENT


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: good[:10],
        lambda good: good[:32],
        lambda good: good[:-1],
        lambda good: good + b"\0",
        lambda good: good[:500] + bytes([good[500] ^ 1]) + good[501:],
        lambda good: bytes([good[0] ^ 128]) + good[1:],
        lambda good: bytes(len(good)),
    ],
    ids=["empty", "a short digest", "no content", "cut", "longer", "a bit of content", "a bit of digest", "zeros"],
)
def test_a_damaged_entry_is_built_again(own_directory, damage):
    (own_directory / "x.o").write_bytes(damage(entry()))
    assert cache.fetch("x", lambda: CONTENT) == CONTENT
    assert cache.fetch("x", never) == CONTENT
    assert (own_directory / "x.o").read_bytes() == entry()


def test_nothing_is_stored_of_a_build_that_fails(own_directory):
    with pytest.raises(NotImplementedError):
        cache.fetch("x", lambda: (_ for _ in ()).throw(NotImplementedError))
    assert list(own_directory.iterdir()) == []


def test_a_killed_writer_leaves_no_entry(own_directory):
    """It is killed when the file is written and not yet renamed: the moment at which half of it might be seen."""
    child = python(
        """
        import os, signal
        from tilewright.compiler import cache
        os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)
        cache.fetch("x", lambda: b"never to be seen")
        """
    )
    assert child.wait() == -signal.SIGKILL
    (left,) = own_directory.iterdir()
    assert left.name.startswith(cache.WRITING)
    assert cache.info()["entries"] == 0
    assert cache.fetch("x", lambda: CONTENT) == CONTENT
    assert left.exists()  # it might have been somebody who is still writing
    an_hour_ago = time.time() - cache.ABANDONED_S - 60
    os.utime(left, (an_hour_ago, an_hour_ago))
    cache._swept.clear()
    cache.fetch("y", lambda: CONTENT)
    assert not left.exists()
    assert cache.fetch("x", never) == CONTENT


def test_an_interrupted_writer_cleans_up(own_directory, monkeypatch):
    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.fetch("x", lambda: CONTENT)
    assert list(own_directory.iterdir()) == []


def test_many_processes_at_once(own_directory):
    """They build, read, clear and damage the same entries; nobody ever gets anything but the right content."""
    script = """
        import random, sys, warnings
        from pathlib import Path
        from tilewright.compiler import cache
        warnings.simplefilter("error")
        random.seed(int(sys.argv[1]))
        for turn in range(300):
            name = f"entry{random.randrange(3)}"
            content = name.encode() * 3000
            assert cache.fetch(name, lambda: content) == content
            if turn % 50 == 10:
                cache.clear()
            if turn % 50 == 30:
                (cache.directory() / (name + cache.SUFFIX)).write_bytes(content[:100])
            cache.info()
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    children = [subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in range(4)]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    assert not [path for path in own_directory.iterdir() if path.name.startswith(cache.WRITING)]


def only_one_warning(words, *addresses):
    with pytest.warns(RuntimeWarning, match=words) as seen:
        found = [cache.fetch(address, lambda: CONTENT) for address in addresses]
    assert len(seen) == 1
    assert set(found) == {CONTENT}


def test_a_directory_that_cannot_be_made(own_directory, monkeypatch):
    """It lies inside a file, where not even root can write."""
    (own_directory / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(own_directory / "file" / "cache"))
    only_one_warning(r"cannot write its kernel cache in .*file/cache \(Not a directory\)", "x", "y", "z")
    assert cache.info() == {"directory": str(own_directory / "file" / "cache"), "entries": 0, "bytes": 0}
    assert cache.clear() == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_directory(own_directory):
    cache.fetch("there", lambda: CONTENT)
    own_directory.chmod(0o500)
    try:
        only_one_warning("Permission denied", "x", "y")
        assert cache.fetch("there", never) == CONTENT
    finally:
        own_directory.chmod(0o700)


def test_a_read_only_file_system(own_directory, monkeypatch):
    """What is there is read; what is damaged is built, in memory."""
    cache.fetch("there", lambda: CONTENT)
    (own_directory / "damaged.o").write_bytes(b"damaged")

    def refuse(path, mode):
        raise OSError(30, os.strerror(30), str(path))

    monkeypatch.setattr(cache, "open", refuse, raising=False)
    only_one_warning("Read-only file system", "damaged", "damaged", "new")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.fetch("there", never) == CONTENT


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(own_directory, monkeypatch):
    """The name can be made, and no byte behind it."""

    def full(path, mode):
        open(path, mode).close()
        return open("/dev/full", "wb")

    monkeypatch.setattr(cache, "open", full, raising=False)
    only_one_warning("No space left on device", "x", "x", "y")
    assert list(own_directory.iterdir()) == []


def test_products_without_a_cache(own_directory):
    """A process whose cache cannot be written multiplies all the same, and says so once."""
    (own_directory / "file").write_text("")
    child = python(
        """
        import numpy as np, tilewright as tw
        for n in (3, 40, 200):
            a = np.ones((n, n), np.float32)
            assert (tw.matmul(a, a) == n).all() and (tw.matmul(a.T, a, threads=1) == n).all()
        """,
        TILEWRIGHT_CACHE_DIR=str(own_directory / "file" / "cache"),
    )
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert errors.count("Warning: tilewright cannot write its kernel cache") == 1, errors


def test_a_second_process_compiles_nothing(own_directory):
    script = """
        import sys
        import numpy as np, tilewright as tw
        a = np.ones((50, 60))
        tw.matmul(a, a.T)
        print("tilewright.ir.builder" in sys.modules)
        """
    first, second = (python(script).communicate(timeout=120)[0].strip() for _ in range(2))
    assert (first, second) == ("True", "False")


def test_info_and_clear(own_directory):
    assert cache.info() == {"directory": str(own_directory), "entries": 0, "bytes": 0}
    for name in "xyz":
        cache.fetch(name, lambda: CONTENT)
    (own_directory / "tuning.sqlite").write_text("not a kernel")
    (own_directory / f"{cache.WRITING}1").write_text("somebody is writing")
    assert cache.info() == {"directory": str(own_directory), "entries": 3, "bytes": 3 * len(entry())}
    assert cache.clear() == 3
    assert cache.info()["entries"] == 0
    assert sorted(path.name for path in own_directory.iterdir()) == [f"{cache.WRITING}1", "tuning.sqlite"]


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "tilewright"

    def nameless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache.Path, "home", nameless)
    assert cache.directory() == cache.Path("/.cache/tilewright")


def test_addresses(monkeypatch):
    """An address changes with every argument, and with the code that writes kernels."""
    addresses = {cache.key("f", "avx2", ()), cache.key("f", "avx2", (1,)), cache.key("f", "avx512", ()), cache.key("g")}
    assert len(addresses) == 4
    assert cache.key("f", "avx2", (1,)) in addresses
    monkeypatch.setattr(cache, "fingerprint", lambda: "other code")
    assert cache.key("f", "avx2", (1,)) not in addresses
