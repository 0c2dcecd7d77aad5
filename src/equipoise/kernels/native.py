"""``replay.cpp``: compiled once for each PyTorch, kept in a folder of the user, and loaded from there."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType

import torch

__all__ = ["build", "forgo", "is_built", "native"]

SOURCE = Path(__file__).with_name("replay.cpp")
NAME = "equipoise_replay"
OTHERS_MAY_WRITE = 0o022

_loaded: list[ModuleType | None] = []


def build() -> None:
    """Compile the part in C++ that makes calls of losses on CUDA devices cheaper, once for this PyTorch.

    Takes half a minute, a C++ compiler and ``ninja``. The result is kept in ``$XDG_CACHE_HOME/equipoise`` (by default
    ``~/.cache/equipoise``), and every later program finds it there by itself.
    """
    if is_built():
        return
    from torch.utils import cpp_extension  # slow to import

    place: object = "a folder for it"
    try:
        place = library = _library()
        library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # apart, and put in place as a whole: programs that build or look for it at the same time never see a part of it
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = cpp_extension.load(
                NAME, [str(SOURCE)], extra_cflags=["-O2"], build_directory=folder, is_python_module=False
            )
            ready = Path(built)
            ready.chmod(0o700)
            ready.replace(library)
        _loaded[:] = [_opened(library)]
    except (RuntimeError, OSError, ImportError) as error:
        raise RuntimeError(
            f"kernels.build() needs a C++ compiler, ninja (pip install ninja) and a place to write, and could not "
            f"compile {SOURCE.name} into {place}: {error}; without it all losses work as before"
        ) from error


def is_built() -> bool:
    """Whether the compiled part is there; loads it."""
    return native() is not None


def native() -> ModuleType | None:
    """The compiled part, None where there is none that can be used."""
    if not _loaded:
        _loaded.append(_found())
    return _loaded[0]


def forgo() -> None:
    """Do without the compiled part from now on."""
    _loaded[:] = [None]


def _library() -> Path:
    """Where the compiled part is kept: another place for each source, PyTorch and Python."""
    made_of = f"{SOURCE.read_text()} {torch.__version__} {importlib.machinery.EXTENSION_SUFFIXES[0]}"
    version = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "equipoise" / version / f"{NAME}.so"


def _found() -> ModuleType | None:
    try:
        path = _library()
        ours = path.is_file() and all(_is_ours(place) for place in (path, path.parent))
        return _opened(path) if ours else None
    except (ImportError, OSError, RuntimeError):  # made on another machine; a home that is not there, or not readable
        return None


def _opened(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written it."""
    about = path.stat()
    return about.st_uid in (os.getuid(), 0) and not about.st_mode & OTHERS_MAY_WRITE
