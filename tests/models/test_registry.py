"""Models by name: those of the package, of timm and torchvision where they are, and of the user's own files."""

import pickle
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.models import MLP, MODELS, CifarResNet, ResNet, build_model, find_classifier
from equipoise.train.spec import RunSpec
from tests.models.cases import C, says
from tests.pages import ROOT

# ---------------------------------------------------------------------------------------------------------------------
# The models of the package
# ---------------------------------------------------------------------------------------------------------------------


def test_names():
    own = ["linear", "mlp", "resnet32", "resnet110", "wideresnet26-10", "densenet121"]
    own += ["resnet18", "resnet50", "resnet101", "resnet152"]
    own += ["unet", "deeplabv3", "deeplabv3-resnet50", "deeplabv3-resnet101", "deeplabv3-resnet152"]
    own += ["text-bow", "text-cnn", "text-pooling-cnn"]
    assert list(MODELS) == own
    for name, entry in MODELS.items():
        assert entry.name == name
        assert entry.summary
        assert entry.source or name in ("linear", "mlp")
    assert MODELS["resnet32"].options == ("width", "widen", "shortcut", "zero_init_residual")
    assert MODELS["resnet18"].options == ("stem", "dropout", "zero_init_residual")


@pytest.mark.parametrize("name", ["ResNet-32", "resnet_32", "RESNET32"])
def test_spelling_does_not_matter(name):
    model = build_model(name, num_classes=10)
    assert isinstance(model, CifarResNet)
    assert len(model.layer1) == 5


@pytest.mark.parametrize(
    ("size", "options", "small"),
    [
        ((64, 64), {}, True),
        ((8, 8), {}, True),
        ((65, 64), {}, False),
        ((224, 224), {}, False),
        (None, {}, False),
        ((32, 32), {"stem": "imagenet"}, False),
        ((224, 224), {"stem": "small"}, True),
    ],
)
@pytest.mark.parametrize("name", ["resnet18", "deeplabv3"])
def test_small_images_get_the_small_stem(name, size, options, small):
    shape = None if size is None else (3, *size)
    with torch.device("meta"):
        model = build_model(name, num_classes=2, input_shape=shape, **options)
    body = model if isinstance(model, ResNet) else model.backbone
    assert body.conv1.kernel_size == ((3, 3) if small else (7, 7))


def test_features_of_any_shape_are_flattened():
    for shape in ((12,), (3, 4), (3, 2, 2)):
        assert build_model("linear", num_classes=2, input_shape=shape)(torch.zeros(5, *shape)).shape == (5, 2)
    model = build_model("mlp", num_classes=2, input_shape=[12], hidden=[7], dropout=0.5, batch_norm=True)
    assert isinstance(model, MLP)
    assert [type(part).__name__ for part in model.body] == ["Linear", "BatchNorm1d", "ReLU", "Dropout"]


def test_numbers_of_numpy_are_numbers():
    labels = np.array([0, 4, 2])
    model = build_model("linear", num_classes=labels.max() + 1, input_shape=np.zeros((7, 2, 3)).shape[1:])
    assert find_classifier(model).num_classes == 5


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet23", "resnet32"),
        ("resnet19", "resnet18"),
        ("unett", "unet"),
        ("deeplab", "deeplabv3"),
        ("text-rnn", "text-cnn"),
        ("MPL", "mlp"),
        ("tim:resnet18", "resnet18"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(ValueError, match=says("name", "timm:NAME", f"got {name!r}", "did you mean", near)):
        build_model(name, num_classes=3)


def test_a_name_like_no_other_gets_all_of_them():
    with pytest.raises(ValueError, match=says("name", "got 'qqq'", "known are", *MODELS)):
        build_model("qqq", num_classes=3)


@pytest.mark.parametrize("name", [None, 3, ""])
def test_no_name(name):
    with pytest.raises(TypeError, match=says("name", "got", repr(name), "resnet18")):
        build_model(name, num_classes=3)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("mlp", {"num_classes": 0}, ValueError, says("num_classes", "at least 1", "got 0")),
        ("mlp", {"num_classes": 2.0}, TypeError, says("num_classes", "integer", "got 2.0")),
        ("mlp", {"num_classes": True}, TypeError, says("num_classes", "got True")),
        ("mlp", {}, TypeError, says("input_shape", "'mlp'", "got None", "(3, 32, 32)")),
        ("linear", {}, TypeError, says("input_shape", "'linear'", "got None")),
        ("mlp", {"input_shape": 12}, ValueError, says("input_shape", "sequence", "got 12")),
        ("mlp", {"input_shape": ()}, ValueError, says("input_shape", "at least one", "got none")),
        ("mlp", {"input_shape": (3, 0)}, ValueError, says("input_shape", "at least 1", "got (3, 0)")),
        ("resnet18", {"input_shape": (32, 32)}, ValueError, says("input_shape", "(channels, ", "got (32, 32)", "mlp")),
        ("unet", {"input_shape": (9,)}, ValueError, says("input_shape", "'unet'", "got (9,)")),
        ("text-bow", {}, TypeError, says("vocabulary", "'text-bow'", "got None", "vocabulary=")),
        ("text-cnn", {"vocabulary": 0}, ValueError, says("vocabulary", "at least 1", "got 0")),
        ("resnet18", {"vocabulary": 9}, TypeError, says("vocabulary", "'resnet18'", "got 9", "text-bow")),
        ("timm:resnet18", {"vocabulary": 9}, TypeError, says("vocabulary", "'timm:resnet18'", "got 9")),
        (
            "resnet32",
            {"shortcuts": "B"},
            TypeError,
            says("resnet32", "got 'shortcuts'", "did you mean 'shortcut'?"),
        ),
        ("resnet32", {"depth": 20}, TypeError, says("resnet32", "got 'depth'", "width")),
        ("linear", {"input_shape": (3,), "hidden": 3}, TypeError, says("linear", "got 'hidden'", "there are none")),
        ("resnet32", {"in_channels": 1}, TypeError, says("resnet32", "got 'in_channels'")),
    ],
)
def test_arguments_that_do_not_fit(name, arguments, error, message):
    with pytest.raises(error, match=message):
        build_model(name, **{"num_classes": 3, **arguments})


# ---------------------------------------------------------------------------------------------------------------------
# timm and torchvision
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_is_not_installed(package, monkeypatch):
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without(package), *sys.meta_path])
    message = rf"(?s)\A{package}:resnet18 needs {package}, which is not installed; pip install {package}.*torch"
    with pytest.raises(ModuleNotFoundError, match=message) as caught:
        build_model(f"{package}:resnet18", num_classes=3)
    assert caught.value.name == package


@pytest.mark.parametrize("package", ["timm", "torchvision"])
@pytest.mark.parametrize(
    "error", [RuntimeError("operator torchvision::nms does not exist"), OSError("undefined symbol")]
)
def test_a_package_that_cannot_be_imported(package, error, monkeypatch):
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without(package, error), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"(?s)installed but fails .*{error}.*; install the build") as caught:
        build_model(f"{package}:resnet18", num_classes=3)
    assert caught.value.__cause__ is error


def test_a_package_that_misses_another_says_so_itself(monkeypatch):
    missing = ModuleNotFoundError("No module named 'huggingface_hub'", name="huggingface_hub")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without("timm", missing), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="huggingface_hub"):
        build_model("timm:resnet18", num_classes=3)


class Without:
    """A finder that does not find a package, or fails on it."""

    def __init__(self, package, error=None):
        self.package, self.error = package, error or ModuleNotFoundError(f"No module named {package!r}", name=package)

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise self.error


@pytest.fixture
def timm(monkeypatch):
    """The part of timm's interface that is used, which notes what it was called with."""

    def create_model(name, **arguments):
        module.calls.append((name, arguments))
        return nn.Sequential(nn.Flatten(), nn.Linear(4, arguments["num_classes"]))

    module = ModuleType("timm")
    module.calls = []
    module.create_model = create_model
    module.list_models = lambda: ["resnet18", "resnet26", "vit_tiny"]
    module.is_model = lambda name: name in module.list_models()
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def test_models_of_timm(timm):
    model = build_model("timm:resnet26", num_classes=C, input_shape=(1, 32, 32), pretrained=True)
    assert find_classifier(model).num_classes == C
    build_model("timm:vit_tiny", num_classes=2)
    assert timm.calls == [
        ("resnet26", {"num_classes": C, "in_chans": 1, "pretrained": True}),
        ("vit_tiny", {"num_classes": 2}),
    ]
    with pytest.raises(ValueError, match=says("name", "model of timm", "got 'resnet25'", "did you mean", "resnet26")):
        build_model("timm:resnet25", num_classes=C)


class Backbone(nn.Module):
    """A segmentation model as torchvision makes it: a dict comes out, with the logits of a second head."""

    def __init__(self, num_classes, aux_loss=False):
        super().__init__()
        self.classifier = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, num_classes, 1))
        self.aux_classifier = nn.Sequential(nn.Conv2d(3, num_classes, 1)) if aux_loss else None

    def forward(self, x):
        result = {"out": self.classifier(x)}
        if self.aux_classifier is not None:
            result["aux"] = self.aux_classifier(x)
        return result


@pytest.fixture
def torchvision(monkeypatch):
    """The part of torchvision's interface that is used, which notes what it was called with."""

    def get_model(name, *, weights=None, **arguments):
        models.calls.append((name, weights, arguments))
        if weights is not None and "num_classes" in arguments:
            raise ValueError("the parameter 'num_classes' expected value 1000")
        classes = arguments.get("num_classes", 1000)
        if name == "fcn_resnet50":
            return Backbone(classes, aux_loss=weights is not None)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))

    segmentation = SimpleNamespace()
    models = SimpleNamespace(calls=[], get_model=get_model, segmentation=segmentation)
    models.list_models = lambda module=None: ["fcn_resnet50"] + (["resnet18"] if module is None else [])
    package = ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    return models


def test_models_of_torchvision(torchvision):
    model = build_model("torchvision:resnet18", num_classes=C, input_shape=(3, 9, 9), progress=False)
    assert model(torch.zeros(2, 3, 9, 9)).shape == (2, C)
    assert torchvision.calls == [("resnet18", None, {"num_classes": C, "progress": False})]
    with pytest.raises(ValueError, match=says("name", "model of torchvision", "got 'resnet81'", "resnet18")):
        build_model("torchvision:resnet81", num_classes=C)
    with pytest.raises(ValueError, match=says("input_shape", "3 channels", "got (1, 9, 9)", "timm:NAME")):
        build_model("torchvision:resnet18", num_classes=C, input_shape=(1, 9, 9))


def test_pretrained_models_of_torchvision_get_a_new_last_layer(torchvision):
    model = build_model("torchvision:resnet18", num_classes=C, weights="DEFAULT")
    assert find_classifier(model).num_classes == C
    assert torchvision.calls == [("resnet18", "DEFAULT", {})]
    model = build_model("torchvision:fcn_resnet50", num_classes=C, weights="DEFAULT")
    assert model(torch.zeros(2, 3, 9, 9)).shape == (2, C, 9, 9)
    assert all(parameter.shape[0] != 1000 for parameter in model.parameters())


def test_segmentation_models_of_torchvision_return_logits(torchvision):
    model = build_model("torchvision:fcn_resnet50", num_classes=C)
    assert model(torch.zeros(2, 3, 9, 7)).shape == (2, C, 9, 7)
    assert find_classifier(model).name == "model.classifier.1"


# ---------------------------------------------------------------------------------------------------------------------
# The user's own
# ---------------------------------------------------------------------------------------------------------------------

SOURCE = """
from torch import nn
from beside import WIDTH

class Net(nn.Module):
    def __init__(self, num_classes, bias=True):
        super().__init__()
        self.fc = nn.Linear(WIDTH, num_classes, bias=bias)
    def forward(self, x):
        return self.fc(x)

def plain(num_classes):
    return Net(num_classes)

def shaped(*, num_classes, input_shape, bias=False):
    model = Net(num_classes, bias)
    model.shape = input_shape
    return model

def everything(**given):
    model = Net(given["num_classes"])
    model.given = given
    return model

def lazy(num_classes):
    from beside import WIDTH
    return Net(num_classes)

def dictionary(num_classes):
    return {"model": Net(num_classes)}

def nothing(num_classes):
    Net(num_classes)

def fails(num_classes):
    return Net(1 // 0)

def stubborn():
    return Net(3)

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my nets.py"
    path.write_text(SOURCE)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    yield path
    sys.modules.pop("beside", None)


def test_functions_of_a_file(file):
    before = list(sys.path)
    model = build_model(f"{file}:plain", num_classes=C, input_shape=(4,))
    assert model(torch.zeros(2, 4)).shape == (2, C)
    assert find_classifier(model).name == "fc"
    model = build_model(f"{file}:shaped", num_classes=C, input_shape=[4], bias=True)
    assert model.shape == (4,)
    assert model.fc.bias is not None
    model = build_model(f"{file}:everything", num_classes=C, vocabulary=9, more=1)
    assert model.given == {"num_classes": C, "vocabulary": 9, "more": 1}
    model = build_model(f"{file}:Net", num_classes=C, bias=False)
    assert model.fc.bias is None
    assert build_model(f"{file}:lazy", num_classes=C).fc.out_features == C
    assert sys.path == before


def test_models_of_a_file_can_be_pickled(file):
    model = build_model(f"{file}:plain", num_classes=C)
    assert torch.equal(pickle.loads(pickle.dumps(model)).fc.weight, model.fc.weight)


def test_a_file_is_relative_to_the_working_folder_and_reloaded(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert build_model("my nets.py:plain", num_classes=C).fc.in_features == 4
    file.write_text(SOURCE.replace("nn.Linear(WIDTH", "nn.Linear(2 * WIDTH + 100"))
    assert build_model("my nets.py:plain", num_classes=C).fc.in_features == 108


def test_a_file_that_is_not_there(tmp_path):
    where = tmp_path / "nets.py"
    with pytest.raises(FileNotFoundError, match=says("name", "FILE.py:function", "got", "there is no", str(where))):
        build_model(f"{where}:net", num_classes=C)


@pytest.mark.parametrize("name", ["nets.py", "nets.py:", "nets.pyc:net", "my.pyx"])
def test_a_file_without_a_function(name):
    with pytest.raises((ValueError, FileNotFoundError), match=says("name", "FILE.py:function", f"got {name!r}")):
        build_model(name, num_classes=C)


def test_a_function_that_is_not_there(file):
    with pytest.raises(ValueError, match=says("name", str(file), "got 'plane'", "did you mean", "plain")):
        build_model(f"{file}:plane", num_classes=C)
    with pytest.raises(ValueError, match=says("name", "a function of", "got 'number'")):
        build_model(f"{file}:number", num_classes=C)


@pytest.mark.parametrize(("function", "kind"), [("dictionary", "dict"), ("nothing", "NoneType")])
def test_a_function_that_returns_something_else(file, function, kind):
    with pytest.raises(TypeError, match=rf"(?s)\A.*:{function} must return an nn.Module, got {kind}; return the model"):
        build_model(f"{file}:{function}", num_classes=C)


def test_a_function_that_fails(file):
    line = SOURCE.splitlines().index("    return Net(1 // 0)") + 1
    message = rf"(?s)my nets.py:fails failed with ZeroDivisionError: .*my nets.py, line {line}\); fix it there"
    with pytest.raises(RuntimeError, match=message) as caught:
        build_model(f"{file}:fails", num_classes=C)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("source", "error", "line"),
    [("x = 1\nimport no_such_module_at_all\n", "ModuleNotFoundError", 2), ("x = 1\n\ndef f(:\n", "SyntaxError", 3)],
)
def test_a_file_that_cannot_be_read(tmp_path, source, error, line):
    path = tmp_path / "broken.py"
    path.write_text(source)
    known = set(sys.modules)
    with pytest.raises(RuntimeError, match=rf"(?s)\Abroken.py failed with {error}: .*line {line}\); fix it there"):
        build_model(f"{path}:net", num_classes=C)
    assert not {name for name in set(sys.modules) - known if "broken" in name}


def test_a_function_that_does_not_accept_what_is_given(file):
    with pytest.raises(
        TypeError, match=r"(?s):stubborn must accept 'num_classes'.*got a function of \(\); add the arg"
    ):
        build_model(f"{file}:stubborn", num_classes=C)
    with pytest.raises(TypeError, match=r"(?s):shaped must accept 'biass'.*or omit the option; did you mean 'bias'"):
        build_model(f"{file}:shaped", num_classes=C, biass=True)


def test_the_page_lists_every_model():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for name, entry in MODELS.items():
        assert re.search(rf"^\| `{name}` \| [a-z ]+ \| {re.escape(entry.summary)} \|$", page, re.MULTILINE)
        assert name in RunSpec.model_fields["model"].description
