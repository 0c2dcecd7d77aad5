"""The part in C++: where it is kept, what is loaded, and what happens where it is not there."""

import shutil

import pytest
import torch

import equipoise as eq
from equipoise.kernels import native

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("ninja")), reason="needs a C++ compiler and ninja"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for it, as if nothing had been loaded yet."""
    monkeypatch.setattr(native, "_loaded", [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_compiler_the_error_says_what_is_missing(cache, monkeypatch):
    from torch.utils import cpp_extension

    def missing(*_, **__):
        raise RuntimeError("Ninja is required to load C++ extensions")

    monkeypatch.setattr(cpp_extension, "load", missing)
    with pytest.raises(RuntimeError, match=r"kernels.build\(\) needs a C\+\+ compiler, ninja .*: Ninja is required"):
        eq.kernels.build()
    assert not native.is_built()


@pytest.fixture
def unusable(cache):
    """A file in its place that cannot be loaded."""
    library = native._library()
    library.parent.mkdir(mode=0o700, parents=True)
    library.write_bytes(b"made on another machine")
    library.chmod(0o700)
    return library


def test_what_is_not_loaded(unusable, monkeypatch):
    """Neither what another machine has made nor what somebody else may have written."""
    assert not native.is_built()
    monkeypatch.setattr(native, "_opened", lambda path: native)
    for mode, loaded in ((0o700, True), (0o722, False)):
        native._loaded.clear()
        unusable.chmod(mode)
        assert native.is_built() == loaded


@needs_compiler
@pytest.mark.slow
def test_a_file_that_cannot_be_loaded_is_built_anew(unusable):
    library = unusable
    eq.kernels.build()
    assert native.is_built()
    native._loaded.clear()
    assert native.is_built()  # found by itself
    assert list(library.parent.iterdir()) == [library]

    native._loaded.clear()
    library.chmod(0o722)  # somebody else may have written it
    assert not native.is_built()


@pytest.mark.parametrize("home", ["missing", "closed", "relative"])
def test_losses_do_not_need_a_home(cache, monkeypatch, home):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    def closed(path):
        raise PermissionError(13, "Permission denied")

    if home == "closed":
        monkeypatch.setattr(native.Path, "is_file", closed)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "" if home == "missing" else "cache")
        monkeypatch.setattr(native.Path, "home", no_home)
    assert not native.is_built()
    assert "equipoise.kernels.build()" not in str(eq.kernels.explain(eq.FocalLoss(), torch.zeros(2, 3)))
    if home != "closed":
        with pytest.raises(RuntimeError, match=r"compile replay\.cpp into a folder for it: Could not determine home"):
            eq.kernels.build()
