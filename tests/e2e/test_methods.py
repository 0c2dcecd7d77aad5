"""Training methods: stage one inside a run, kills in every stage, several devices."""

import shutil

import pytest

from equipoise.train.folder import RunFolder
from tests.e2e.commands import assert_same_run, contents, killed, rows, rows_there

EPOCHS = 6
SMALL = {
    "data": "digits-lt",
    "model": "mlp",
    "model_options": ["hidden=[64]", "dropout=0.3"],
    "lr": 0.01,
    "epochs": EPOCHS,
    "batch_size": 8,
}
OLTR = SMALL | {"method": "oltr:loss=cfl"}
CRT = SMALL | {"method": "crt:epochs=3"}


def inside(run):
    """Stage one of an unfinished run."""
    return RunFolder(run.draft / "stage-one")


def gone_on(equipoise, folder, **options):
    """The finished run, and the output."""
    finished = equipoise(folder, "train", out="run", **options)
    assert finished.status == 0, finished.err
    return RunFolder(folder / "run"), finished.out


@pytest.fixture(scope="module")
def oltr(equipoise, tmp_path_factory):
    """A run that nothing disturbed."""
    return equipoise.train(tmp_path_factory.mktemp("oltr"), **OLTR)


@pytest.fixture(scope="module")
def crt(equipoise, tmp_path_factory):
    """A run that nothing disturbed."""
    return equipoise.train(tmp_path_factory.mktemp("crt"), **CRT)


def test_killed_in_stage_one(equipoise, tmp_path, oltr):
    run = killed(equipoise, tmp_path, lambda run: rows_there(2)(inside(run)), **OLTR)
    assert not inside(run).finished
    run, output = gone_on(equipoise, tmp_path, **OLTR)
    assert "stage one: resuming an earlier attempt" in output
    assert f"stage one: epoch 1/{EPOCHS}" not in output
    assert_same_run(run, oltr)
    assert_same_run(RunFolder(run.path / "stage-one"), RunFolder(oltr.path / "stage-one"))


def test_killed_in_stage_two(equipoise, tmp_path, oltr):
    run = killed(equipoise, tmp_path, rows_there(2), **OLTR)
    before = contents(inside(run).path)
    run, output = gone_on(equipoise, tmp_path, **OLTR)
    assert "resuming an earlier attempt" in output
    assert "stage one: epoch" not in output
    assert f"epoch 1/{EPOCHS}" not in output
    assert {file.name: content for file, content in before.items()} == {
        file.name: content for file, content in contents(run.path / "stage-one").items()
    }
    assert len(rows(run)) == EPOCHS
    assert_same_run(run, oltr)


@pytest.mark.slow
def test_killed_while_stage_two_predicted(equipoise, tmp_path, oltr):
    run = killed(equipoise, tmp_path, lambda run: run.predictions("val").is_file(), **OLTR)
    run, output = gone_on(equipoise, tmp_path, **OLTR)
    assert f"epoch {EPOCHS}/{EPOCHS}" not in output
    assert_same_run(run, oltr)


@pytest.mark.slow
def test_killed_between_the_stages(equipoise, tmp_path, crt):
    run = killed(equipoise, tmp_path, lambda run: inside(run).finished, **CRT)
    before = contents(inside(run).path)
    run, output = gone_on(equipoise, tmp_path, **CRT)
    assert "stage one: epoch" not in output
    after = {file.name: content for file, content in contents(run.path / "stage-one").items()}
    assert all(after[file.name] == content for file, content in before.items() if file.name != "resume.ckpt")
    assert_same_run(run, crt)


def test_stage_two_without_its_stage_one(equipoise, tmp_path, oltr):
    """The error loses no work: with stage one back in place, the run resumes."""
    run = killed(equipoise, tmp_path, lambda run: run.resume_point.is_file(), **OLTR)
    kept = tmp_path / "kept"
    shutil.move(inside(run).path, kept)
    before = contents(run.draft)
    refused = equipoise(tmp_path, "train", out="run", **OLTR)
    assert refused.status == 2
    assert "stage one is missing, so stage two cannot resume" in refused.err
    assert "Traceback" not in refused.err
    assert contents(run.draft) == before
    run, output = gone_on(equipoise, tmp_path, stage_one=kept, **OLTR)
    assert "resuming an earlier attempt" in output
    assert_same_run(run, oltr)


@pytest.mark.slow
def test_missing_or_unfinished_stage_one(equipoise, tmp_path, oltr):
    one = tmp_path / "one"
    shutil.copytree(oltr.path / "stage-one", one)
    run = killed(equipoise, tmp_path, lambda run: run.resume_point.is_file(), stage_one=one, **OLTR)
    before = contents(run.draft)
    for state, place in (("an unfinished one", RunFolder(one).draft), ("none", tmp_path / "elsewhere")):
        shutil.move(one if one.exists() else RunFolder(one).draft, place)
        refused = equipoise(tmp_path, "train", out="run", stage_one=one, **OLTR)
        assert refused.status == 2
        assert f"found {state} at {one}" in refused.err
        assert contents(run.draft) == before
    shutil.move(tmp_path / "elsewhere", one)
    assert_same_run(gone_on(equipoise, tmp_path, stage_one=one, **OLTR)[0], oltr)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bbn", "oltr"])
def test_two_processes_give_the_result_of_one(equipoise, tmp_path, method):
    settings = SMALL | {"model_options": ["hidden=[64]", "dropout=0"], "epochs": 2, "accelerator": "cpu"}
    two_stages = method in ("crt", "oltr")
    first = {"stage_one": equipoise.train(tmp_path, out="one", **settings).path} if two_stages else {}
    alone = equipoise.train(tmp_path, out="alone", method=method, **settings, **first)
    both = equipoise.train(tmp_path, out="both", method=method, devices=2, strategy="ddp", **settings, **first)
    assert both.record.environment.processes == 2
    ours, theirs = (run.results.test.overall for run in (both, alone))
    assert ours["mean_class_accuracy"] == pytest.approx(theirs["mean_class_accuracy"], abs=0.05)
    losses = [[row.train["loss"] for row in run.history()] for run in (both, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_output_of_a_method(crt, equipoise):
    finished = equipoise(crt.path.parent, "train", out="run", **CRT)
    assert finished.status == 0
    assert "finished already" in finished.out
    assert "mean class accuracy" in finished.out
