"""Losses and methods as text: what a text means, one form for all that mean the same, and damaged or hostile texts."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.catalogue import CATALOGUE
from equipoise.comparison.plan import run_name
from equipoise.expressions import (
    LOSS_ARGUMENTS,
    METHOD_NAMES,
    Call,
    Choices,
    Sum,
    canonical,
    compact,
    expand,
    list_losses,
    parse,
    same,
)
from equipoise.train.methods import METHODS


def loss(name, **options):
    return Sum(((1, Call(name, (), tuple(sorted(options.items())))),))


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ce", loss("ce")),
        ("CrossEntropyLoss()", loss("ce")),
        ("focal( gamma = 3. )", loss("focal", gamma=3)),
        ("balanced_softmax", loss("balanced-softmax")),
        ("flsd-53(table=((0.2, 5), (1, 3)))", loss("flsd-53", table=((0.2, 5), (1, 3)))),
        ("dice(classes=(0,), per_image=true)", loss("dice", classes=(0,), per_image=True)),
        ("ce(weight=None, label-smoothing=1e-1)", loss("ce", weight=None, label_smoothing=0.1)),
        ("ce(reduction=batch-mean)", loss("ce", reduction="batch-mean")),
        ("focal(gamma=linear(5, -1))", loss("focal", gamma=Call("linear", (5, -1)))),
        ("ldam(weight=drw(0.9))", loss("ldam", weight=Call("drw", (0.9,)))),
        ("ldam(weight=Square_Root())", loss("ldam", weight="square-root")),
        ("focal(gamma=[1, 2])", loss("focal", gamma=Choices((1, 2)))),
        ("ce + 0.5 * dice", Sum(((1, Call("ce")), (0.5, Call("dice"))))),
        ("2 * (ce + dice * 0.25)", Sum(((2, Call("ce")), (0.5, Call("dice"))))),
        ("[0.1, 1] * dice", Sum(((Choices((0.1, 1)), Call("dice")),))),
        ("LDAM_DRW(start=0.5)", Call("ldam-drw", (), (("start", 0.5),))),
        ("crt(loss=FocalLoss(gamma=1))", Call("crt", (), (("loss", loss("focal", gamma=1)),))),
        ("sdn(feature=auto)", Call("sdn", (), (("feature", "auto"),))),
        ("a/mine.py:Tail(by=3.0)", loss("a/mine.py:Tail", by=3.0)),
        ('"my dir/it\'s+mine.py:Tail"(word="in it")', loss("my dir/it's+mine.py:Tail", word="in it")),
        ("2*mine.py:Tail + ce", Sum(((2, Call("mine.py:Tail")), (1, Call("ce"))))),
        ("crt(loss=mine.py:Tail(word=in))", Call("crt", (), (("loss", loss("mine.py:Tail", word="in")),))),
        (r'"C:\new\mine.py:T"', loss(r"C:\new\mine.py:T")),
    ],
)
def test_what_a_text_means(text, value):
    assert parse(text) == value
    assert parse(str(value)) == value
    assert hash(parse(text)) == hash(value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("focal:gamma=3", "focal(gamma=3)"),
        ("FOCAL : gamma = 3.0 : label-smoothing=1e-1", "focal(label_smoothing=0.1, gamma=3)"),
        ("ce+0.5*dice:per_image=true", "ce + 0.5 * dice(per_image=True)"),
        ("ce:label_smoothing=1e-1 + 1e+1*dice:classes=(0,2)", "ce(label_smoothing=0.1) + 10 * dice(classes=(0, 2))"),
        ("dice:classes=(0)", "dice(classes=(0,))"),
        ("flsd:table=((1,2))", "flsd(table=((1, 2),))"),
        ("focal:gamma=steps((5,3),(0.5))", "focal(gamma=steps((5, 3), (0.5,)))"),
        ("ldam:weight=drw", "ldam(weight=drw)"),
        ("ldam:weight=inverse,drw(0.9)", "ldam(weight=[inverse, drw(0.9)])"),
        ("focal:gamma=1,2,3", "focal(gamma=[1, 2, 3])"),
        ("asl:gamma_pos=(1,2),(3,4)", "asl(gamma_pos=[(1, 2), (3, 4)])"),
        ("ce + 0.1,1*dice", "ce + [0.1, 1] * dice"),
        ("sdn:feature=ce", "sdn(feature=ce)"),
        ("sdn:feature=ce,(focal:gamma=1)", "sdn(feature=[ce, focal(gamma=1)])"),
        ("sdn:feature=ce+0.5*focal", "sdn(feature=ce + 0.5 * focal)"),
        ("oltr:loss=(focal:gamma=2):memory=0", "oltr(loss=focal(gamma=2), memory=0)"),
        ("oltr:loss=(focal)", "oltr(loss=focal)"),
        ("bbn:loss=(mine.py:plain)", "bbn(loss=mine.py:plain)"),
        ("tau-norm:tau=none", "tau-norm(tau=None)"),
        ("mine.py:Tail:strength=2", "mine.py:Tail(strength=2)"),
        ("2*../my losses/tail.py:Tail:k=1", '2 * "../my losses/tail.py:Tail"(k=1)'),
    ],
)
def test_the_syntax_of_version_0_1(old, new):
    assert parse(old) == parse(new)
    assert same(old, new)
    assert canonical(old) == canonical(new) == canonical(canonical(new))


def test_numbers_for_user_code_are_unchanged():
    assert str(parse("mine.py:Tail(by=3.0)")) == "mine.py:Tail(by=3.0)"
    assert str(parse("focal(gamma=3.0)")) == "focal(gamma=3)"


WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(-[a-z0-9]{1,3})?", fullmatch=True)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\"'"), max_size=8)
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS.filter(lambda word: word not in ("true", "false", "none")) | TEXTS
CALLS = st.builds(Call, WORDS, st.lists(PLAIN, min_size=1, max_size=3).map(tuple))
VALUES = st.recursive(
    PLAIN | CALLS,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.lists(inner, min_size=1, max_size=3).map(tuple).map(Choices)
    ),
    max_leaves=6,
)
KEYS = st.from_regex(r"[a-z][a-z0-9]{0,5}_arg", fullmatch=True)
NAMES = st.sampled_from([entry.text for entry in CATALOGUE]) | st.sampled_from(
    ["mine.py:Tail", "my dir/a-b.py:Tail", "it's.py:x"]
)
TERMS = st.builds(
    lambda name, options: Call(name, (), tuple(sorted(options.items()))),
    NAMES,
    st.dictionaries(KEYS, VALUES, max_size=3),
)
FACTORS = (
    st.floats(1e-6, 1e6)
    | st.integers(1, 9)
    | st.lists(st.floats(0.1, 9), min_size=1, max_size=2).map(lambda values: Choices(tuple(values)))
)
SUMS = st.builds(Sum, st.lists(st.tuples(FACTORS, TERMS), min_size=1, max_size=3).map(tuple))


@given(SUMS, st.sampled_from(["crt", "tau-norm"]), st.booleans())
def test_values_round_trip(value, method, inside):
    expression = Call(method, (), (("loss", value),)) if inside else value
    text = str(expression)
    assert parse(text) == expression
    assert str(parse(text)) == canonical(text)
    assert parse(canonical(text)) == expression


def test_candidates():
    (first, *_), many = expand(parse("ce + [1, 2] * focal(gamma=[1, 2, 2])")), "[1, 2, 3, 4, 5, 6, 7]"
    assert str(first) == "ce + focal(gamma=1)"
    texts = [str(one) for one in expand(parse("crt(loss=[ce, focal(gamma=[1, 2])], lr=[0.1, 0.2])"))]
    assert len(texts) == len(set(texts)) == 6
    assert texts[-1] == "crt(loss=focal(gamma=2), lr=0.2)"
    with pytest.raises(ValueError, match=r"at most 1,000 losses, got 2,401 combinations"):
        expand(parse(f"focal(a={many}, b={many}, c={many}, d={many})"))


@pytest.mark.parametrize(
    ("line", "losses"),
    [
        ("ce focal(gamma=[1, 2, 3]) balanced-softmax", ["ce", "focal(gamma=[1, 2, 3])", "balanced-softmax"]),
        ("ce, focal( gamma = 1 ),recall", ["ce", "focal( gamma = 1 )", "recall"]),
        ("ce + 0.5 * dice (per_image=True) focal", ["ce+0.5*dice(per_image=True)", "focal"]),
        (
            "crt(loss=focal(gamma=1)) tau-norm(tau=[0.5, 1]),sdn",
            ["crt(loss=focal(gamma=1))", "tau-norm(tau=[0.5, 1])", "sdn"],
        ),
        (
            'ce "my dir/mine.py:Tail"(word="a b") mine.py:f(x=1)',
            ["ce", '"my dir/mine.py:Tail"(word="a b")', "mine.py:f(x=1)"],
        ),
        (
            "focal:gamma=1,2,3 focal(gamma=1),ce:weight=drw,recall",
            ["focal:gamma=1,2,3", "focal(gamma=1)", "ce:weight=drw", "recall"],
        ),
    ],
)
def test_a_line(line, losses):
    assert list_losses(line) == losses
    assert list_losses(" ".join(map(canonical, losses))) == [
        one.replace(" + ", "+").replace(" * ", "*") for one in map(canonical, losses)
    ]


# ------------------------------------------------------------------------------------------- damaged and hostile texts


def mistake_in(text):
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("focal(3)", "focal must have keyword arguments only, as in focal(gamma=3), got '3' in 'focal(3)'"),
        ("focal(**x)", "keyword arguments only"),
        ("focal(*x)", "keyword arguments only"),
        ("focal(gamma=1, gamma=2)", "found gamma twice"),
        ("ce - dice", "got 'ce - dice'"),
        ("ce-dice", "must be a loss of the catalogue, got 'ce-dice'"),
        ("[ce, focal]", "must be a name with arguments"),
        ("ce(gamma=9**9**9)", "got '9**9**9' in"),
        ("ce(gamma=a.b)", "got 'a.b'"),
        ("ce(gamma=a[0])", "got 'a[0]'"),
        ("ce(gamma={1})", "got '{1}'"),
        ("ce(gamma=1 if a else 2)", "invalid syntax"),
        ("ce(gamma=f'{a}')", "must be a number, a name"),
        ("ce(gamma=b'a')", "must be a number, a name"),
        ("ce(gamma=1j)", "must be a number, a name"),
        ("ce(gamma=...)", "must be a number, a name"),
        ("ce(gamma=[])", "must be a number, a name"),
        ("ce(gamma=[x for x in y])", "got "),
        ("ce(gamma=linear(start=5, stop=1))", "must be a number, a name"),
        ("ce(gamma=1e999)", "a number must be finite"),
        ("ce(gamma=" + "9" * 5000 + ")", "digits"),
        ("(lambda: ce)()", "got"),
        ("__import__('os').system('true')", "must be a name with arguments"),
        ("ce; dice", "invalid syntax"),
        ("ce # dice", "'#' has no meaning"),
        ("ce \\", "got"),
        ("ce)(", "must have an opening bracket"),
        ("ce(a=(1]", "must have an opening bracket"),
        ("focal:gamma=2)+dice(smooth=1", "must have an opening bracket"),
        ("\0ce", "null bytes"),
        ("\ud800", "that is no text"),
        ("[1, 2] * ([1, 2] * ce)", "must have one list of factors"),
        ("sdn + ce", "got 'sdn'"),
        ("ce(gamma=1)(gamma=2)", "must be a name with arguments"),
        ("focal:gamma=1:2", "key=value, got '2'"),
    ],
)
def test_texts_that_mean_nothing(text, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the words are compared below)
        parse(text)
    message = str(error.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("depth", [45, 1_000, 5_000, 10**5])
@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [
        ("(", "ce", ")"),
        ("[", "1", "]"),
        ("ce(a=", "1", ")"),
        ("-", "1", ""),
        ("ce+", "ce", ""),
        ("not ", "ce", ""),
        ("ce:a=(", "ce", ")"),
        ("2*", "ce", ""),
        ("a.", "b", ""),
        ("lambda:", "1", ""),
        ("~", "1", ""),
        ("1 if 1 else ", "ce", ""),
        ("(", "", ""),
        (")", "", ""),
        ("a,", "", ""),
        ("'", "", ""),
        (":", "", ""),
        ("*", "", ""),
        (".py", "", ""),
        ("1", "", ""),
    ],
)
def test_deep_and_long_texts_end_in_one_line(before, inside, after, depth):
    text = before * depth + inside + after * depth
    message = mistake_in(text)
    assert message or depth == 45 or before == ".py"  # short sums are fine, and a long name that no file has
    assert "\n" not in message
    assert len(message) < 500
    assert isinstance(canonical(text), str)
    list_losses(text)


@given(st.text("ce focal:=,()[]+*-\"'.py\\#{}0159\n", max_size=40))
def test_any_text_is_an_expression_or_an_error(text):
    message = mistake_in(text)
    assert "\n" not in message
    if not message:
        assert parse(canonical(text)) == parse(text)


# ---------------------------------------------------------------------------------------------------------- the rest


def test_names_of_folders():
    assert compact("dice(per_image=True)") == "dice-per_image=true"
    assert compact("focal:gamma=linear(5,1)") == "focal:gamma=linear(5,1)"  # a plan may have it
    texts = [
        "focal(gamma=(1, 2))",
        "ce + 0.5 * dice",
        'mine.py:f(a="/../x y")',
        "crt(loss=focal(gamma=1))",
        '"../a b.py:T"',
    ]
    names = [run_name(text, 0) for text in texts]
    assert len(set(names)) == len(names)
    for name in names:
        assert Path(name).name == name
        assert not set(name) & set(' */\\:?"<>|()')
    for old, new in [("focal:gamma=1", "focal(gamma=1)"), ("sdn:feature=ce", "sdn(feature=ce)")]:
        assert run_name(old, 3) == run_name(new, 3)


def test_the_losses_of_methods():
    known = {option for kind in METHODS.values() for option in kind.__dataclass_fields__}
    assert set(LOSS_ARGUMENTS) <= known
    assert tuple(METHODS) == METHOD_NAMES
    for kind in METHODS.values():
        types = {name: field.type for name, field in kind.__dataclass_fields__.items()}
        assert {name for name, type_ in types.items() if type_ == "LossText"} == set(types) & set(LOSS_ARGUMENTS)


def test_it_needs_no_torch():
    code = (
        "import sys, equipoise.expressions as e; e.parse('crt(loss=focal(gamma=1))'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
