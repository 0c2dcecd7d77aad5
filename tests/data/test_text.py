"""Word vectors from text files."""

import numpy as np
import pytest

from equipoise.data import DataError, Vocabulary

WORDS = Vocabulary(("the", "cat", "sat"))


def test_vectors_in_the_format_of_glove(tmp_path):
    file = tmp_path / "glove.6B.2d.txt"
    file.write_text("dog 1 2\nthe 0.418 -0.25\n. . 7 8\nsat 1e-3 -2\n", encoding="utf-8")
    vectors = WORDS.read_vectors(file)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array([[0, 0], [0, 0], [0.418, -0.25], [0, 0], [1e-3, -2]], np.float32))


def test_header_of_fasttext_is_skipped(tmp_path):
    file = tmp_path / "wiki.vec"
    file.write_text("2 3\ncat 1 2 3 \nthe 4 5 6\n", encoding="utf-8")
    np.testing.assert_array_equal(WORDS.read_vectors(file)[2:], [[4, 5, 6], [1, 2, 3], [0, 0, 0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1 2\ncat 3\n", "line 2: a line must be a word and 2 finite numbers, found 'cat 3'; correct"),
        ("the 1 2\ncat 3 nan\n", "line 2: a line must be a word and 2 finite numbers"),
        ("the\n", "line 1: a line must be a word and some finite numbers"),
        ("the 1 x\n", "the file must hold word vectors, found ValueError"),
        ("", "there must be at least one line, found an empty file"),
        (b"the \xff\xfe", "the file must hold word vectors, found UnicodeDecodeError"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    file = tmp_path / "vectors.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        WORDS.read_vectors(file)
    assert str(file) in str(caught.value)
