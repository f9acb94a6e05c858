"""Files whose content is run, or decides what is run: read only where no other user can have written them.

A file counts if it is a regular one, belongs to this user (not even root takes those of others) and no other
user may write it; so does the directory that it is in, which may be a link. Directories above are not checked: a user
who can exchange one of them can only put another one of this user's in its place. Files and directories are made for
this user alone, independently of the umask.
"""
from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

WRITING = ".writing-"               # how the name of an unfinished file begins
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY        # a FIFO, or a terminal, is opened and refused


class Refused(OSError):
    """Another user could have written it. The message is a sentence with path, owner, mode and remedy."""


def flaw(path: Path, found: os.stat_result, directory: bool = False) -> str:
    """Why a file or a directory that looks so is not taken; "" if it is."""
    what = "directory" if directory else "regular file"
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(found.st_mode):
        return f"{path} is not a {what}"
    mode, me = f"mode {stat.S_IMODE(found.st_mode):04o}", os.geteuid()
    remedy = "if its content can be trusted, or use another"
    if found.st_uid != me:
        return (f"{path} belongs to user {found.st_uid} ({mode}) and must belong to user {me}, as this process does: "
                f"`chown {me} {path}` {remedy} {what}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (f"{path} can be written by other users ({mode}, owner {found.st_uid}): `chmod go-w {path}` "
                f"{remedy} {what}")
    return ""


def refusal(directory: Path) -> str:
    """Why nothing is read from a directory or written to it; "" if it is this user's own, or not there."""
    try:
        return flaw(directory, os.stat(directory), directory=True)
    except OSError:
        return ""


def read(path: Path) -> bytes:
    """What is in a file. Refused, or another OSError."""
    folder = os.open(path.parent, _READ | os.O_DIRECTORY)
    try:
        _check(path.parent, folder, directory=True)
        try:
            file = os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            if path.is_symlink():
                raise Refused(f"{path} is a link, not a regular file") from None
            raise
        try:
            _check(path, file)
            with open(file, "rb", closefd=False) as opened:
                return opened.read()
        finally:
            os.close(file)
    finally:
        os.close(folder)


def write(path: Path, content: bytes) -> None:
    """A file whole or not at all, and its directory if there is none. Refused, or another OSError."""
    make(path.parent)
    if why := refusal(path.parent):
        raise Refused(why)
    temporary = path.parent / f"{WRITING}{os.getpid()}-{os.urandom(8).hex()}"
    try:
        create(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def create(path: Path, content: bytes = b"") -> None:
    """A new file. FileExistsError if there is one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)         # a umask may have taken more away
        file.write(content)


def make(directory: Path) -> None:
    """The directory, and those above it that are not there."""
    try:
        os.mkdir(directory, 0o700)
        os.chmod(directory, 0o700)              # a umask may have taken more away
    except FileNotFoundError:
        if directory.parent.is_dir():           # /proc makes no directories, and has this answer
            raise
        make(directory.parent)
        make(directory)
    except FileExistsError:
        if not directory.is_dir():
            raise


def _check(path: Path, opened: int, directory: bool = False) -> None:
    if why := flaw(path, os.fstat(opened), directory):
        raise Refused(why)
