"""Atomic file writing: files are written to a private folder, synced to disk and moved into place by one rename.

Nothing is written through a symbolic link, and readers never see a partial file.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from equipoise._reading import InputError

try:
    import fcntl
except ImportError:  # not available on this system: no locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["appearing", "check_place", "clear_drafts", "move", "no_empty_folders", "open_unlinked", "write_text"]

DRAFT = ".draft-"
"""Separator of the target name and a random suffix in the name of the temporary folder."""


def check_place(path: Path) -> None:
    """Raise if no file can be written to a path."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {str(path.parent)!r} must exist, found none; create it first")
    if path.is_dir():
        raise InputError(f"{path}: there is a folder of that name; remove it or choose another name")


@contextmanager
def appearing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``path`` once all data are on disk, and removed on failure.

    It is in a new private folder beside ``path`` with a random name, so no link leads out of it. A killed process
    leaves this folder behind; :func:`clear_drafts` and the next writer of ``path`` remove it. Without ``sync``, the
    file survives the end of the process, but not necessarily that of the machine.
    """
    check_place(path)
    clear_drafts(path.parent, path.name)
    with _private_folder(path) as folder:
        draft = folder / path.name
        yield draft
        if sync:
            move(draft, path)
        else:
            draft.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8 atomically: a reader sees the old file or the new one."""
    with appearing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")


def move(source: Path, target: Path) -> None:
    """Sync a file or folder to disk and rename it on the same disk; a file at ``target`` is replaced."""
    for path in [*source.rglob("*"), source] if source.is_dir() else [source]:
        _sync(path)
    source.replace(target)
    _sync(target.parent)


def clear_drafts(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers left in a folder, for one file or for all files below it; live writers hold a lock."""
    drafts = folder.rglob(f".*{DRAFT}*") if name is None else folder.glob(f".{glob.escape(name)}{DRAFT}*")
    for draft in list(drafts):
        if fcntl is None or draft.is_symlink() or not draft.is_dir():
            continue
        with suppress(OSError):
            handle = os.open(draft, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def no_empty_folders(path: Path) -> Iterator[None]:
    """If the body fails, remove the folder that it created and empty parent folders."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise


def open_unlinked(path: Path, mode: str = "a") -> IO[str]:
    """Open or create a text file, such as a log or a lock; a symbolic link is refused."""
    return open(path, mode, encoding="utf-8", errors="backslashreplace", opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it must be a file, found a symbolic link; remove it", path) from None


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    """A new private folder beside ``path``, locked while in use."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}{DRAFT}", dir=path.parent))
        handle = None
        try:
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(handle, fcntl.LOCK_EX)
                if not folder.is_dir():  # another writer of the same path removed it as a leftover
                    continue
            yield folder
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if handle is not None:
                os.close(handle)


def _sync(path: Path) -> None:
    """Sync a file, or the directory entries of a folder, to disk."""
    if path.is_symlink() or (path.is_dir() and os.name != "posix"):
        return
    try:
        handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    except PermissionError:  # a folder with write but no read permission
        return
    try:
        os.fsync(handle)
    except OSError as error:  # not supported by the file system
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
