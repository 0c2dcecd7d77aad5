"""Messages about unknown names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from equipoise._suggestions import LISTED, nearest, some


@pytest.mark.parametrize(
    ("word", "known", "words"),
    [
        ("focl", ["ce", "focal", "db-focal"], "did you mean 'focal'?"),
        ("fokal", ["ce", "db-focal", "focal"], "did you mean 'focal' or 'db-focal'?"),
        ("gamma", ["gamma_pos", "gamma_neg", "gamma_max", "gamma_min"], "did you mean 'gamma_pos', 'gamma_neg' or "),
        ("CAT", ["dog", "Cat"], "did you mean 'Cat'?"),
        ("data seed", ["seed", "data_seed"], "did you mean 'data_seed'?"),
        ("Tau_Norn", ["crt", "tau-norm"], "did you mean 'tau-norm'?"),
        ("xyz", ["ce", "focal"], "known are ce, focal"),
        ("", ["ce"], "known are ce"),
        ("xyz", [], "there are none"),
    ],
)
def test_the_words(word, known, words):
    assert nearest(word, iter(known)).startswith(words)


def test_at_most_three_are_near_and_the_nearest_is_the_first():
    answer = nearest("gamma", ["gamma_max", "gamma_pos", "gamma_by", "gamma_neg"])
    assert answer.startswith("did you mean 'gamma_by', '")
    assert answer.count("gamma") == 3


def test_a_long_list_is_cut():
    names = [f"n{k}" for k in range(LISTED + 3)]
    assert nearest("xyz", names).endswith(f"n{LISTED - 1} and 3 more")
    assert some(names[:8]) == ", ".join(names[:8])


def test_what_is_shown_may_differ_from_what_is_compared():
    places = {"photos": "/data/photos", "texts.csv": "/data/texts.csv"}
    assert nearest("fotos", places, shown=places.__getitem__) == "did you mean '/data/photos'?"
    assert nearest("xyz", places, shown=places.__getitem__) == "known are /data/photos, /data/texts.csv"


def test_other_words_stand_only_where_nothing_is_near():
    assert nearest("focl", ["focal"], otherwise="see --help") == "did you mean 'focal'?"
    assert nearest("xyz", ["focal"], otherwise="see --help") == "see --help"


def test_it_loads_nothing_before_a_name_is_wrong():
    code = "import sys, equipoise._suggestions; print({'torch', 'difflib'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
