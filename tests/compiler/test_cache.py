"""The cache of compiled kernels: many processes, killed writers, damage, and directories that cannot be written."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import time
import warnings
from pathlib import Path

import pytest

from tests.helpers.processes import start as python
from tilewright.compiler import cache, owned

CONTENT = b"machine code" * 1000


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """A directory per test, of which nobody has been warned."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(cache, "_swept", set())
    return tmp_path


def entry(content=CONTENT, address="x"):
    return hashlib.sha256(address.encode() + b"\0" + content).digest() + content


def never():
    raise AssertionError("the entry was there, and was built all the same")


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
    assert left.name.startswith(owned.WRITING)
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
    children = [python(script, n) for n in range(4)]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    assert not [path for path in own_directory.iterdir() if path.name.startswith(owned.WRITING)]


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
    assert cache.info() == {"directory": str(own_directory / "file" / "cache"), "entries": 0, "bytes": 0, "refused": ""}
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

    def refuse(path, content):
        raise OSError(30, os.strerror(30), str(path))

    monkeypatch.setattr(owned, "create", refuse)
    only_one_warning("Read-only file system", "damaged", "damaged", "new")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.fetch("there", never) == CONTENT


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(own_directory, monkeypatch):
    """The name can be made, and no byte behind it."""

    def full(path, content):
        path.touch()
        with open("/dev/full", "wb") as file:
            file.write(content)

    monkeypatch.setattr(owned, "create", full)
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
    assert cache.info() == {"directory": str(own_directory), "entries": 0, "bytes": 0, "refused": ""}
    for name in "xyz":
        cache.fetch(name, lambda: CONTENT)
    (own_directory / "tuning.jsonl").write_text("not a kernel")
    (own_directory / f"{owned.WRITING}1").write_text("somebody is writing")
    assert cache.info() == {"directory": str(own_directory), "entries": 3, "bytes": 3 * len(entry()),
                            "refused": ""}
    assert cache.clear() == 3
    assert cache.info()["entries"] == 0
    assert sorted(path.name for path in own_directory.iterdir()) == [f"{owned.WRITING}1", "tuning.jsonl"]


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


# ---- what others could have written


SOMEBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def refused(words):
    """The entry x is built anew, with one warning."""
    with pytest.warns(RuntimeWarning, match=words) as seen:
        assert cache.fetch("x", lambda: b"ours") == b"ours"
    assert len(seen) == 1


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777, 0o722])
def test_a_directory_that_others_can_write(own_directory, bits):
    cache.fetch("x", lambda: CONTENT)
    own_directory.chmod(bits)
    try:
        refused(f"{own_directory} can be written by other users .mode {bits:04o}, owner {os.geteuid()}.: `chmod go-w")
        assert (own_directory / "x.o").read_bytes() == entry()  # not written either
        assert "can be written by other users" in cache.info()["refused"]
    finally:
        own_directory.chmod(0o700)
    assert cache.info()["refused"] == ""


@as_root
@pytest.mark.parametrize("bits", [0o755, 0o700, 0o777])
def test_a_directory_of_another_user(own_directory, bits):
    """Root does not take it either."""
    cache.fetch("x", lambda: CONTENT)
    own_directory.chmod(bits)
    os.chown(own_directory, SOMEBODY, SOMEBODY)
    try:
        refused(f"{own_directory} belongs to user {SOMEBODY} .mode {bits:04o}. and must belong to user 0")
    finally:
        os.chown(own_directory, 0, 0)
        own_directory.chmod(0o700)


@pytest.mark.parametrize("bits", [0o666, 0o660, 0o602])
def test_a_file_that_others_can_write(own_directory, bits):
    cache.fetch("x", lambda: CONTENT)
    (own_directory / "x.o").chmod(bits)
    refused(f"x.o can be written by other users .mode {bits:04o}")
    assert cache.fetch("x", never) == b"ours"  # in its place is one that nobody else can
    assert mode(own_directory / "x.o") == 0o600


@as_root
def test_a_file_of_another_user(own_directory):
    cache.fetch("x", lambda: CONTENT)
    os.chown(own_directory / "x.o", SOMEBODY, SOMEBODY)
    refused(f"x.o belongs to user {SOMEBODY}")
    assert cache.fetch("x", never) == b"ours"


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "device"])
def test_what_is_not_a_regular_file(own_directory, kind):
    """A FIFO, which nobody writes to, would be waited for."""
    path = own_directory / "x.o"
    elsewhere = own_directory / "elsewhere"
    elsewhere.write_bytes(entry())
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    try:
        {"fifo": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(elsewhere), "directory": path.mkdir,
         "device": lambda: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))}[kind]()
    except PermissionError:
        pytest.skip("no devices in this container")
    refused("x.o is (not a|a link, not a) regular file")


def test_a_link_to_a_directory_is_followed(own_directory, tmp_path_factory, monkeypatch):
    link = tmp_path_factory.mktemp("links") / "cache"
    link.symlink_to(own_directory)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(link))
    cache.fetch("x", lambda: CONTENT)
    assert (own_directory / "x.o").read_bytes() == entry()
    assert cache.fetch("x", never) == CONTENT


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_what_is_made_is_this_users_alone(own_directory, monkeypatch, umask):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(own_directory / "a" / "b"))
    before = os.umask(umask)
    try:
        cache.fetch("x", lambda: CONTENT)
    finally:
        os.umask(before)
    assert mode(own_directory / "a") == mode(own_directory / "a" / "b") == 0o700
    assert mode(own_directory / "a" / "b" / "x.o") == 0o600
    assert cache.fetch("x", never) == CONTENT


def test_an_entry_under_anothers_name_is_built_again(own_directory):
    cache.fetch("y", lambda: b"another kernel")
    os.rename(own_directory / "y.o", own_directory / "x.o")
    assert cache.fetch("x", lambda: CONTENT) == CONTENT
    assert cache.fetch("x", never) == CONTENT


def test_products_with_a_cache_of_others(own_directory):
    """The refusal is one warning, and the products are right."""
    own_directory.chmod(0o777)
    done = python(
        """
        import numpy as np, tilewright as tw
        for n in (3, 40):
            a = np.ones((n, n), np.float32)
            assert (tw.matmul(a, a) == n).all()
        """
    )
    _, errors = done.communicate(timeout=120)
    own_directory.chmod(0o700)
    assert done.returncode == 0, errors
    assert errors.count("RuntimeWarning: tilewright does not") == 1, errors
    assert list(own_directory.iterdir()) == []


def test_relative_directories_do_not_count(tmp_path, monkeypatch):
    """Machine code would come from the directory that a program is started in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "here")
    with pytest.warns(RuntimeWarning, match="TILEWRIGHT_CACHE_DIR=here is ignored: it must be an absolute path"):
        assert cache.directory() == tmp_path / "home" / ".cache" / "tilewright"
    monkeypatch.setenv("HOME", "home")
    assert cache.directory() == Path("/.cache/tilewright")
