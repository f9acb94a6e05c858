"""Files that commands write: whole or not at all; links, devices and pipes stay what they are."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.command_line import call
from tilewright import outputs
from tilewright.compiler import owned

WORDS = "what was computed\n"


def run(*arguments):
    done = call(*arguments)
    return done.exit_code, done.output


def operands(folder):
    a = np.arange(12, dtype="f4").reshape(3, 4)
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", a.T)
    return folder / "a.npy", folder / "b.npy", a @ a.T


def writers(folder):
    """Each command's way to a file."""
    a, b, _ = operands(folder)
    return {
        "run": lambda path: run("run", a, b, "-o", path),
        "json": lambda path: run("plan", 8, 8, 8, "--json", path),
        "export": lambda path: run("tune", "export", path),
        "write": lambda path: (outputs.write(path, WORDS), (0, ""))[1],
    }


NAMES = ["run", "json", "export", "write"]


def left(folder):
    return {path.name for path in folder.iterdir()} - {"a.npy", "b.npy"}


@pytest.mark.parametrize("name", NAMES)
def test_a_link_stays_and_its_file_is_replaced(tmp_path, name):
    file, link = tmp_path / "there.npy", tmp_path / "link.npy"
    file.write_text("before")
    os.chmod(file, 0o600)
    link.symlink_to("there.npy")
    status, said = writers(tmp_path)[name](link)
    assert status == 0, said
    assert link.is_symlink()
    assert os.readlink(link) == "there.npy"
    assert file.read_bytes() != b"before"
    assert left(tmp_path) == {"there.npy", "link.npy"}


@pytest.mark.parametrize("name", NAMES)
def test_a_link_to_nothing_makes_what_it_points_to(tmp_path, name):
    link = tmp_path / "link.npy"
    link.symlink_to(tmp_path / "new.npy")
    assert writers(tmp_path)[name](link)[0] == 0
    assert link.is_symlink()
    assert (tmp_path / "new.npy").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_written_to(tmp_path, name):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    status, said = writers(tmp_path)[name](pipe)
    reader.join(60)
    assert status == 0, said
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    if name == "write":
        assert received == [WORDS.encode()]
    if name == "run":
        assert received[0].startswith(b"\x93NUMPY")
        assert np.frombuffer(received[0][-36:], "f4").reshape(3, 3).tolist() == operands(tmp_path)[2].tolist()
    assert left(tmp_path) == {"pipe"}


@pytest.mark.parametrize("name", NAMES)
def test_a_device_is_written_to(tmp_path, name):
    """Not /dev/null itself, which a mistake would take from the machine."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        open(device, "wb").close()
    except PermissionError:
        pytest.skip("no devices can be made here")
    status, said = writers(tmp_path)[name](device)
    assert status == 0, said
    assert stat.S_ISCHR(device.stat().st_mode)
    assert left(tmp_path) == {"null"}


def test_what_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")

    def fails():
        with outputs.replacing(file) as opened:
            opened.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert file.read_text() == "before"
    assert left(tmp_path) == {"file"}


def test_an_input_that_is_a_pipe_is_refused(tmp_path):
    a, _, _ = operands(tmp_path)
    os.mkfifo(tmp_path / "pipe.npy")
    status, said = run("run", a, tmp_path / "pipe.npy", "-o", tmp_path / "c.npy")
    assert status == 2
    assert "is a FIFO, not a regular file" in " ".join(said.split())


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3), }", "{'descr': '<f4', 'shape': (", "{(" * 500,
     "{'descr': ('<f4', 3), 'fortran_order': False, 'shape': (3, 3), }", "\\", "'''", "", "{}"],
    ids=lambda text: text[:12],
)
def test_damaged_headers_are_one_sentence(tmp_path, header):
    a, _, _ = operands(tmp_path)
    bad = tmp_path / "bad.npy"
    text = header.encode() + b"\n"
    bad.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(36))
    for content in (bad.read_bytes(), b"PK\x03\x04" + bytes(40)):
        bad.write_bytes(content)
        status, said = run("run", a, bad, "-o", tmp_path / "c.npy")
        assert status == 2, said
        assert said.startswith("tilewright: ")
        assert "Traceback" not in said


@pytest.mark.parametrize("words", [
    ("emit", 8, 8, 8, "-t", "x86-avx2", "-o", "x.s"), ("asm", 8, 8, 8, "--json", "x"), ("plan", 8, 8, 8, "--json", "x"),
    ("tune", "export", "x"), ("build", "shapes", "-o", "x"), ("mfma", "list", "--json", "x")], ids=lambda x: x[0])
def test_a_file_that_cannot_be_written_is_a_sentence_before_the_work(tmp_path, words):
    *words, name = words
    status, said = run(*words, tmp_path / "none" / name)
    assert (status, said) == (2, f"tilewright: {tmp_path / 'none' / name} cannot be written: there is no directory "
                                 f"{tmp_path / 'none'}\n")


def test_a_directory_that_nobody_can_make_is_refused():
    """In /proc, which has no place for one and says that it is not there."""
    with pytest.raises(OSError, match="No such file"):
        owned.make(Path("/proc/nowhere"))
