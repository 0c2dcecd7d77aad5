"""The help of the command line loads fast."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise._extras import EXTRAS
from equipoise.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "pydantic", "yaml", "pytorch_lightning", "matplotlib", "sklearn", "torchmetrics"}


def test_help_loads_nothing_heavy():
    program = (
        "import sys\n"
        "from equipoise.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "compare" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_help_describes_every_command():
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    places = [text.index(f"{name} {line}") for name, line in COMMANDS.items()]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_uses_the_docstring_of_the_command(name):
    assert getattr(import_module(f"equipoise.cli.{name}"), name).__doc__.splitlines()[0] == COMMANDS[name]
    ran = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert ran.exit_code == 0
    assert COMMANDS[name] in " ".join(ran.output.split())
    assert "--help" in ran.output


def test_misspelt_command_suggests_the_nearest():
    ran = CliRunner().invoke(app, ["evalute"])
    assert ran.exit_code == 2
    assert "Did you mean 'evaluate'?" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--data", "nowhere", "--loss", "focal:gamma=2"], "nowhere: there must be a file"),
        (["compare", "--data", "digit-lt", "--losses", "ce focal:gamma=1,2"], "did you mean 'digits-lt'?"),
        (["train", "--data", "digits-lt", "--loss", "fokal"], "did you mean 'focal'"),
        (["compare", "--data", "digits-lt", "--losses", "ce fokal:gamma=2"], "did you mean 'focal'"),
        (["train", "--data", "digits-lt", "--method", "sdnn"], "did you mean 'sdn'?"),
        (["compare", "--data", "digits-lt", "--methods", "ce sdnn"], "did you mean 'sdn'?"),
        (["train", "--data", "digits-lt", "--epochz", "3"], "--epoch"),
        (["train", "wrong.yaml"], "did you mean 'loss'?"),
        (["compare", "broken.yaml"], "not YAML"),
        (["train", "missing.yaml"], "no such file"),
    ],
)
def test_misspelt_command_loads_nothing_heavy(tmp_path, arguments, words):
    (tmp_path / "wrong.yaml").write_text("data: digits-lt\nlos: ce\n")
    (tmp_path / "broken.yaml").write_text("data: [\n")
    program = (
        "import sys\n"
        "from equipoise.cli.app import app\n"
        "try:\n"
        f"    app({arguments!r})\n"
        "except SystemExit as end:\n"
        "    print(end.code, sorted({'torch', 'pytorch_lightning', 'sklearn', 'matplotlib'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout == "2 []\n"
    assert words in ran.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["broken.yaml", "wrong.yaml"]


def test_data_of_a_cluster_may_be_missing_locally(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "equipoise.comparison.compare.compare", lambda spec, *_, **more: seen.append(spec.data) or 1 / 0
    )
    ran = CliRunner().invoke(app, ["compare", "--data", "/on/the/cluster", "--ray", "auto"])
    assert isinstance(ran.exception, ZeroDivisionError)
    assert seen == ["/on/the/cluster"]


@pytest.mark.parametrize(
    ("arguments", "module", "words"),
    [
        (["--help"], "typer", "this command needs typer"),
        (["train", "--data", "digits-lt"], "yaml", "this command needs pyyaml"),
        (["train", "--data", "digits-lt"], "pytorch_lightning", "training needs pytorch-lightning"),
        (["compare", "--data", "digits-lt"], "pytorch_lightning", "training needs pytorch-lightning"),
        (["compare", "--data", "digits-lt", "--ray", "auto"], "ray", "--ray needs ray"),
        (["train", "--data", "digits-lt"], "sklearn", "reading the embedded digits needs scikit-learn"),
        (["evaluate", "table.csv"], "pyarrow", "reading .csv and .parquet needs pyarrow"),
    ],
)
def test_missing_packages_give_installation_advice(tmp_path, arguments, module, words):
    (tmp_path / "table.csv").write_text("logit_a,logit_b,target\n1.0,2.0,b\n")
    program = f"import sys\nsys.modules[{module!r}] = None\nfrom equipoise.cli import main\nmain()\n"
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    extra = EXTRAS[module][1]
    assert ran.returncode in (1, 2)
    assert ran.stderr == (
        f"error: {words}, which is not installed; pip install '.[{extra}]' in a clone, otherwise pip install "
        f"'equipoise[{extra}]'\n"
    )


def test_extras_contain_their_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.values():
        assert package in {re.split(r"[^\w-]", one)[0] for one in extras[extra]}
