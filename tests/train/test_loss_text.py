"""Losses from text: every loss of the catalogue, the grammar, and errors."""

import math

import pytest
import torch

import equipoise
from equipoise.catalogue import CATALOGUE, find
from equipoise.schedules import Cosine, Linear, Parabolic, Steps
from equipoise.tasks import Task
from equipoise.train.loss_text import build_loss, parse_loss, python_call
from equipoise.train.rows import expand_rows
from equipoise.weights import (
    Deferred,
    RecallWeights,
    effective_number,
    inverse_frequency,
    median_frequency,
    square_root,
)

COUNTS = (1000, 200, 30, 4, 0)
CLASSES = len(COUNTS)
EPOCHS = 10
LINKS = {"multiclass": {"softmax"}, "multilabel": {"sigmoid"}, "segmentation": {"softmax", "region"}}
FITTING = [(task, entry.name) for task, links in LINKS.items() for entry in CATALOGUE if entry.link in links]


def build(text, task="multiclass", **changed):
    about = {
        "num_classes": CLASSES,
        "counts": COUNTS,
        "num_samples": 1200,
        "epochs": EPOCHS,
        "ignore_index": -100,
        "sync": False,
    }
    return build_loss(text, task=Task(task), **{**about, **changed})


def batch(task, *, only=None):
    """Logits and targets of a task; ``only`` one class, or all with ignored targets for -100 or -1."""
    draw = torch.Generator().manual_seed(0)
    shape = (8, CLASSES, 4, 4) if task == "segmentation" else (8, CLASSES)
    logits = torch.randn(shape, generator=draw).requires_grad_()
    if task == "multilabel":
        targets = (torch.rand(shape, generator=draw) < 0.4).float()
        targets[0, 0] = -1.0
        if only is not None:
            targets = torch.nn.functional.one_hot(torch.full((8,), only), CLASSES).float()
        return logits, targets
    targets = torch.randint(CLASSES - 1, (8, *shape[2:]), generator=draw)
    targets[0] = -100
    return logits, targets if only is None else torch.full_like(targets, only)


def value_and_gradient(loss, logits, targets):
    value = loss(logits, targets)
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


# ---------------------------------------------------------------------------------------------------------------------
# The catalogue
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("task", "name"), FITTING)
def test_every_loss_with_a_class_without_training_samples(task, name, sync):
    loss = build(name, task, sync=sync)
    assert type(loss) is getattr(equipoise, name)
    for epoch in (0, EPOCHS - 1):
        loss.set_epoch(epoch)
        value, gradient = value_and_gradient(loss, *batch(task))
        assert value.ndim == 0
        assert 0 < value < math.inf
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
    value, gradient = value_and_gradient(loss.eval(), *batch(task, only=CLASSES - 1))  # the class that was never seen
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("task", "text"),
    [
        *FITTING,
        ("multiclass", "focal:gamma=linear(5,1):label_smoothing=0.1"),
        ("multiclass", "focal:gamma=(1,2,5)"),
        ("multiclass", "ce:weight=effective(0.9)"),
        ("multiclass", "recall:momentum=0.1:reduction=mean"),
        ("multiclass", "ldam:scale=10:preset=none"),
        ("multilabel", "asl:gamma_neg=2:target_gap=none"),
        ("multiclass", "0.123456789*ce"),
        ("multiclass", "ce(label_smoothing=others(0.05))"),
        ("multiclass", "ldam + 0.25*focal:gamma=linear(5,1)"),
        ("segmentation", "recall + 0.5*dice:per_image=true"),
    ],
)
@pytest.mark.parametrize("ignore_index", [-100, 255])
def test_the_call_in_python_makes_the_same_loss(task, text, ignore_index):
    about = {"num_classes": 3, "num_samples": 200, "epochs": 10, "ignore_index": ignore_index}
    counts = [90, 9, 40]
    call = python_call(text, **about)
    mine = eval(call, {"equipoise": equipoise, "counts": counts})
    theirs = build_loss(text, task=Task(task), counts=counts, sync=False, **about)
    torch.manual_seed(0)
    logits = torch.randn(8, 3, 4, 4) if task == "segmentation" else torch.randn(8, 3)
    targets = (logits > 0.5).float() if task == "multilabel" else logits.roll(1, 1).argmax(1)
    if task != "multilabel":
        targets[:2] = ignore_index
    for epoch in (0, 9):
        theirs.set_epoch(epoch)
        if getattr(mine, "epochs", 1) is not None:
            mine.set_epoch(epoch)
        assert torch.equal(mine(logits, targets), theirs(logits, targets))


@pytest.mark.parametrize("text", ["ldam:weight=drw", "ce+ldam:weight=drw", "mine.py:Tail", "ce+0.5*mine.py:Tail"])
def test_losses_without_a_python_expression(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    assert python_call(text, num_classes=3, num_samples=200, epochs=10, ignore_index=-100) is None


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_loss_refuses_the_other_tasks(entry):
    for task, links in LINKS.items():
        if entry.link not in links:
            with pytest.raises(ValueError, match=f"task '{task}', got {entry.text}.*take one of") as raised:
                build(entry.name, task)
            offered = str(raised.value).split("take one of ")[1].split(", ")
            assert {find(name).link for name in offered} == links


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_short_name(entry):
    assert {parse_loss(name)[0].name for name in (entry.name.upper(), *entry.short_names)} == {entry.name}


@pytest.mark.parametrize("task", LINKS)
def test_the_plain_loss_fits_its_task(task):
    value, _ = value_and_gradient(build(Task(task).default_loss, task), *batch(task))
    logits, targets = batch(task)
    known = targets != -1
    plain = {
        "multilabel": lambda: torch.nn.functional.binary_cross_entropy_with_logits(logits[known], targets[known]),
    }.get(task, lambda: torch.nn.functional.cross_entropy(logits, targets))
    torch.testing.assert_close(value, plain().detach())


# ---------------------------------------------------------------------------------------------------------------------
# What a text means
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("focal:gamma=3", lambda: equipoise.FocalLoss(3.0)),
        ("FOCAL : gamma = 0.5 : label-smoothing=1e-1", lambda: equipoise.FocalLoss(0.5, label_smoothing=0.1)),
        ("focal:gamma=(1,2,3,4,5)", lambda: equipoise.FocalLoss(gamma=[1.0, 2.0, 3.0, 4.0, 5.0])),
        ("focal:preset=published", lambda: equipoise.FocalLoss(reduction="sum")),
        ("flsd:table=((0.5,4),(1,2))", lambda: equipoise.SampleDependentFocalLoss([(0.5, 4.0), (1.0, 2.0)])),
        ("ce:weight=(1,2,3,4,5)", lambda: equipoise.CrossEntropyLoss([1.0, 2.0, 3.0, 4.0, 5.0])),
        ("ce:weight=none", equipoise.CrossEntropyLoss),
        ("ce:weight=inverse", lambda: equipoise.CrossEntropyLoss(inverse_frequency(COUNTS))),
        ("ce:weight=Square_Root", lambda: equipoise.CrossEntropyLoss(square_root(COUNTS))),
        ("ce:weight=effective", lambda: equipoise.CrossEntropyLoss(effective_number(COUNTS, 0.9999))),
        ("ce:weight=effective(0.99)", lambda: equipoise.CrossEntropyLoss(effective_number(COUNTS, 0.99))),
        ("ce:weight=median", lambda: equipoise.CrossEntropyLoss(median_frequency(COUNTS))),
        ("cb:beta=0.9:normalize=none", lambda: equipoise.ClassBalancedLoss(COUNTS, beta=0.9, normalize=None)),
        ("recall:momentum=0.2:min-errors=0", lambda: equipoise.RecallLoss(CLASSES, momentum=0.2, min_errors=0.0)),
        ("ohem:keep=.3:min_kept=2", lambda: equipoise.OHEMLoss(keep=0.3, min_kept=2)),
        ("ce(label_smoothing=others(0.05))", lambda: equipoise.CrossEntropyLoss(label_smoothing=0.05 * 5 / 4)),
        ("focal(label_smoothing=others(0.1))", lambda: equipoise.FocalLoss(label_smoothing=0.125)),
        ("ce:ignore_index=1", lambda: equipoise.CrossEntropyLoss(ignore_index=1)),
    ],
)
def test_the_same_as_in_python(text, same):
    logits, targets = batch("multiclass")
    targets[0] = 1
    torch.testing.assert_close(build(text)(logits, targets), same()(logits, targets))


def test_the_data_decide_what_is_ignored():
    logits, targets = batch("segmentation")
    targets[targets == -100] = 255
    loss = build("ce+dice", "segmentation", ignore_index=255)
    expected = equipoise.CrossEntropyLoss(ignore_index=255)(logits, targets)
    expected = expected + equipoise.DiceLoss(ignore_index=255)(logits, targets)
    torch.testing.assert_close(loss(logits, targets), expected)


def test_processes_share_where_they_can():
    assert build("ce", sync=True).sync
    assert not build("ce:sync=false", sync=True).sync
    assert build("dice", "segmentation", sync=True).sync
    assert not build("lovasz", "segmentation", sync=True).sync
    assert build("lovasz:per_image=true", "segmentation", sync=True).sync


def test_weights_start_late():
    loss = build("ldam:weight=drw")
    again = equipoise.LDAMLoss(COUNTS, weight=Deferred(effective_number(COUNTS), start=0.8), epochs=EPOCHS)
    logits, targets = batch("multiclass")
    values = []
    for epoch in range(EPOCHS):
        loss.set_epoch(epoch)
        again.set_epoch(epoch)
        values.append(loss(logits, targets).item())
        assert values[-1] == again(logits, targets).item()
    assert len(set(values[:8])) == len(set(values[8:])) == 1
    assert values[7] != values[8]

    early = build("ce:weight=drw(0.5,0.9)")
    early.set_epoch(5)
    expected = equipoise.CrossEntropyLoss(effective_number(COUNTS, 0.9))
    torch.testing.assert_close(early(logits, targets), expected(logits, targets))


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("linear(5,1)", Linear(5.0, 1.0)),
        ("Cosine(5, 1)", Cosine(5.0, 1.0)),
        ("parabolic(0,2)", Parabolic(0.0, 2.0)),
        ("steps((5,3,1),(0.3,0.7))", Steps((5.0, 3.0, 1.0), at=(0.3, 0.7))),
    ],
)
def test_schedules(text, schedule):
    logits, targets = batch("multiclass")
    loss = build(f"0.5*focal:gamma={text}+flsd:table=((0.4,{text}),(1,2))")
    for epoch in (0, 4, 9):
        loss.set_epoch(epoch)
        gamma = schedule(epoch / EPOCHS)
        first = equipoise.FocalLoss(gamma)(logits, targets)
        second = equipoise.SampleDependentFocalLoss([(0.4, gamma), (1.0, 2.0)])(logits, targets)
        torch.testing.assert_close(loss(logits, targets), 0.5 * first + second)
    last = loss(logits, targets)
    loss.set_progress(0.0)
    assert loss(logits, targets) != last
    loss.set_progress(0.9)
    assert loss(logits, targets) == last


def test_a_sum_of_losses():
    logits, targets = batch("segmentation")
    loss = build("ce:label_smoothing=1e-1 + 1e+1*dice:classes=(0,2) + recall", "segmentation")
    assert isinstance(loss, equipoise.SumOfLosses)
    assert loss.factors == (1.0, 10.0, 1.0)
    parts = [
        equipoise.CrossEntropyLoss(label_smoothing=0.1),
        equipoise.DiceLoss([0, 2]),
        equipoise.RecallLoss(CLASSES),
    ]
    values = [value_and_gradient(part, logits, targets) for part in parts]
    value, gradient = value_and_gradient(loss, logits, targets)
    torch.testing.assert_close(value, values[0][0] + 10.0 * values[1][0] + values[2][0])
    torch.testing.assert_close(gradient, values[0][1] + 10.0 * values[1][1] + values[2][1])
    assert [type(module) for module in loss.modules() if isinstance(module, RecallWeights)] == [RecallWeights]


def test_a_factor_on_one_loss():
    logits, targets = batch("multiclass")
    torch.testing.assert_close(build("3*ce")(logits, targets), 3.0 * equipoise.CrossEntropyLoss()(logits, targets))


def test_a_sum_resumes():
    loss, resumed = (build("focal:gamma=linear(5,1)+recall:momentum=0.1") for _ in range(2))
    logits, targets = batch("multiclass")
    loss.set_epoch(6)
    loss(logits, targets)
    resumed.load_state_dict(loss.state_dict())
    assert resumed(logits, targets).item() == loss(logits, targets).item()


# ---------------------------------------------------------------------------------------------------------------------
# Lists of candidates
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("ce", ["ce"]),
        ("focal:gamma=1, 2,2", ["focal(gamma=1)", "focal(gamma=2)"]),
        ("focal:gamma=(1,2),linear(5,1)", ["focal(gamma=(1, 2))", "focal(gamma=linear(5, 1))"]),
        (
            "flsd:table=((0.2,5),(1,3)),((0.5,4),(1,2))",
            ["flsd-53(table=((0.2, 5), (1, 3)))", "flsd-53(table=((0.5, 4), (1, 2)))"],
        ),
        ("ce + 0.1,1*dice", ["ce + 0.1 * dice", "ce + dice"]),
        (
            "ce:weight=none,drw+dice:smooth=0,1",
            [
                "ce(weight=None) + dice(smooth=0)",
                "ce(weight=None) + dice(smooth=1)",
                "ce(weight=drw) + dice(smooth=0)",
                "ce(weight=drw) + dice(smooth=1)",
            ],
        ),
    ],
)
def test_lists_become_single_texts(text, texts):
    assert expand_rows(text) == texts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("focal:gamma=1,,2", "got 'focal:gamma=1,,2': invalid syntax"),
        ("focal:gamma=1,high", "must be a number .* got 'high'"),
        ("focal:gama=1,2", "did you mean 'gamma'"),
        ("ce,dice", "a loss must be a name .*, or a sum of these, got 'ce,dice'"),
    ],
)
def test_every_candidate_is_checked(text, words):
    with pytest.raises(ValueError, match=words):
        expand_rows(text)


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be meant
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be a loss of the catalogue, got ''"),
        ("focl:gamma=2", "did you mean 'focal'"),
        ("ce+", r"must be written as .*, got 'ce\+': invalid syntax"),
        ("focal:gama=2", "FocalLoss must get options that it knows, got 'gama'; did you mean 'gamma'"),
        ("dice:weight=inverse", "DiceLoss must get options that it knows, got 'weight'"),
        ("focal:2", "focal must have options of the form key=value, got '2'"),
        ("focal:gamma=", "must be written as .*, got 'focal:gamma=': invalid syntax"),
        ("focal:gamma=1:gamma=2", "found gamma twice"),
        ("focal:gamma=1,2", r"gamma of FocalLoss must be one value, got \[1, 2\]; candidates are for"),
        ("focal:gamma=(1,2", r"must have a closing bracket for every opening one, got 'focal:gamma=\(1,2'"),
        ("focal:gamma=(1 2)", r"got 'focal:gamma=\(1 2\)': invalid syntax"),
        ("focal:gamma=1)", r"must have an opening bracket for every closing one, got 'focal:gamma=1\)'"),
        ("focal:gamma=()", "gamma of FocalLoss must be a number"),
        ("focal:gamma=((1,2),(3,4))", r"gamma of FocalLoss must be a number .* got '\(\(1, 2\), \(3, 4\)\)'"),
        ("focal:gamma=(linear(5,1),2)", "gamma of FocalLoss must be a number"),
        ("flsd:table=(1,2)", r"table of SampleDependentFocalLoss must be pairs in brackets .* got '\(1, 2\)'"),
        ("flsd:table=((0.2,5,1),(1,3))", "table of SampleDependentFocalLoss must be pairs"),
        ("focal:gamma=(1,high)", "gamma of FocalLoss must be a number"),
        ("focal:gamma=high", "must be a number or a schedule .* or numbers in brackets .*, got 'high'"),
        ("focal:gamma=true", "must be a number or a schedule .* got 'True'"),
        ("focal:gamma=none", "must be a number or a schedule .* got 'None'"),
        ("focal:gamma=__import__", "gamma of FocalLoss must be a number .* got '__import__'"),
        ("focal:gamma=nan", "must be a number"),
        ("focal:validate=yes", "validate of FocalLoss must be true or false, got 'yes'"),
        ("dice:per_image=1", "per_image of DiceLoss must be true or false, got '1'"),
        ("ohem:min_kept=1.5", "min_kept of OHEMLoss must be an integer, got '1.5'"),
        ("focal:reduction=3", "reduction of FocalLoss must be a word, got '3'"),
        ("focal:reduction=none", "reduction of FocalLoss must be a word, got 'None'"),
        ("dice:smooth=linear(0,1)", "smooth of DiceLoss must be a number, got"),
        ("ldam:counts=(1,2)", r"LDAMLoss must get counts from the data and the run, got '\(1, 2\)'"),
        ("cfl:epochs=3", "CyclicalFocalLoss must get epochs from the data and the run"),
        ("ce:weight=invers", "got 'invers'; did you mean 'inverse'"),
        ("ce:weight=2", "weight of CrossEntropyLoss must be numbers in brackets .* known rules are inverse"),
        ("ce:weight=drw(2)", r"drw\(start,beta\) must get arguments that fit, got \(2,\): start must be"),
        ("ce:weight=drw(0.8,0.9,1)", r"drw\(start,beta\) .* too many positional arguments"),
        ("focal:gamma=liner(5,1)", "got 'liner'; did you mean 'linear'"),
        ("focal:gamma=linear(5)", r"linear\(start,stop\) .* missing a required argument: 'stop'"),
        ("focal:gamma=steps(5,1)", r"steps\(values,at\) must get arguments that fit"),
        ("ce(label_smoothing=others(0.1, 0.2))", r"others\(alpha\) must get one number, got others"),
        ("ce(label_smoothing=others(high))", r"others\(alpha\) must get one number, got others\(high\)"),
        ("ce(label_smoothing=others(1.5))", "alpha of others must be a finite number in"),
        ("focal(gamma=others(0.5))", "a schedule must be one that is known, got 'others'"),
        ("high*ce", r"a factor must be a number .*, got 'high' in 'high\*ce'"),
        ("0*ce", "the factor of CrossEntropyLoss must be a finite number in"),
        ("-1*ce", "the factor of CrossEntropyLoss must be a finite number in"),
        ("*ce", r"must be written as .*, got '\*ce': invalid syntax"),
    ],
)
def test_invalid_text(text, words):
    with pytest.raises(ValueError, match=words):
        parse_loss(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("focal:gamma=-1", "FocalLoss: gamma.* must be a finite number in"),
        ("focal:gamma=(1,2)", "FocalLoss: gamma.* must have one entry for each of the 5 classes .*, got 2"),
        ("ce:weight=(1,2)", "CrossEntropyLoss: weight must have one entry for each of the 5 classes"),
        ("ce+focal:gamma=linear(5,-1)", "FocalLoss: gamma.* must be a finite number in"),
        ("focal:gamma=steps((5,-3,1),(0.3,0.7))", "FocalLoss: gamma.* must be a finite number in"),
        ("focal:reduction=average", "FocalLoss: reduction must be one of"),
        ("flsd:table=((0.5,4),(0.9,2))", "SampleDependentFocalLoss: table must hold .* that end at 1.0"),
        ("flsd:table=()", "SampleDependentFocalLoss: table must hold"),
        ("ce(label_smoothing=others(0.9))", r"alpha must be a finite number in \[0, 0.8\], got 0.9"),
        ("cb:normalize=max", "ClassBalancedLoss: normalize must be one of"),
    ],
)
def test_a_value_that_the_loss_refuses(text, words):
    with pytest.raises(ValueError, match=words):
        build(text)


def test_a_label_of_every_sample():
    with pytest.raises(ValueError, match="got one that all 1000 have; leave that label out"):
        build("db", "multilabel", num_samples=1000)
