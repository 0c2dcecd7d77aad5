"""The settings of a run: one flat list, the same for options, YAML and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from equipoise._paths import nothing_there, same_place
from equipoise._reading import read_yaml
from equipoise._suggestions import nearest, shortened, some
from equipoise.expressions import METHOD_NAMES, canonical, check_loss_names, check_method_name, is_method, parse, same
from equipoise.tasks import is_same_task, task_name
from equipoise.train.folder import plain

if TYPE_CHECKING:
    from equipoise.train.rows import Row

__all__ = [
    "FREE",
    "GROUPS",
    "ROW_SETTINGS",
    "RunSpec",
    "SharedSpec",
    "SpecError",
    "describe_differences",
    "is_quick",
    "read_spec",
]


class SpecError(ValueError):
    """Invalid settings; ``mistakes`` lists all of them."""

    def __init__(self, where: str, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        separator = "\n  " if len(mistakes) > 1 else " "
        super().__init__(separator.join([f"{where}: {count} in the settings:", *mistakes]))


def _listed(value: object) -> object:
    """Parse ``a,b`` into a list of two and a single number into a list of one."""
    value = _words(value)
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _size(value: object) -> object:
    """``240x320`` is a height and a width, ``224`` both."""
    if isinstance(value, str):
        sides = value.replace("x", ",").split(",")
        if not all(side.strip().isdecimal() and int(side) > 0 for side in sides):
            raise ValueError(f"must be a size such as 224 or 240x320, got {shortened(repr(value))}")
        value = tuple(map(int, sides))
    if isinstance(value, int):
        value = (value,)
    return (*value, *value) if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _words(value: object) -> object:
    """Convert a number to text, because YAML reads ``precision: 32`` as one."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_words)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
Shares = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], BeforeValidator(_listed)]
Side = Annotated[int, Field(ge=1, le=16_384)]
Size = Annotated[tuple[Side, Side], BeforeValidator(_size)]
Sampler = Literal["none", "balanced", "square-root", "progressive", "reversed", "repeat-factor"]
Compile = Literal["none", "default", "reduce-overhead", "max-autotune"]

GROUPS = ("Data", "Model and loss", "Training", "Machine", "Record")
"""Headings under which help pages list the settings."""
FREE = ("accelerator", "devices", "nodes", "strategy", "workers", "cache", "logger", "stage_one")
"""Settings that may differ when an interrupted run is resumed."""
PLACES = ("data", "open_set", "image_root")
"""Settings that are paths: equal if they lead to the same file or folder."""
EXPRESSIONS = ("loss", "method")
"""Settings that are expressions: equal if they mean the same."""


def _setting(group: str, default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return Field(default, description=description, json_schema_extra={"group": group}, **limits)


def _data(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return _setting("Data", default, description, **limits)


def _model(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return _setting("Model and loss", default, description, **limits)


def _train(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return _setting("Training", default, description, **limits)


def _machine(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return _setting("Machine", default, description, **limits)


def _record(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return _setting("Record", default, description, **limits)


def is_quick(info: ValidationInfo) -> bool:
    """Whether to skip checks that need torch."""
    return bool((info.context or {}).get("quick"))


class SharedSpec(BaseModel):
    """Settings shared by the runs of a comparison. None means that data, task or optimiser decide."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    data: str = _data(..., "Embedded data set (digits-lt, digit-scenes, digit-maps), a file or a folder.")
    task: Annotated[str, AfterValidator(task_name)] | None = _data(
        None, "multiclass, multilabel or segmentation; inferred from the data by default."
    )
    image_size: Size | None = _data(None, "Height and width of images, 224 or 240x320; None keeps their size.")
    fit: Literal["stretch", "crop"] = _data("stretch", "How images are resized: stretch or crop.")
    val_share: float = _data(
        0.15, "Fraction of the training data for validation, if there is no validation split.", gt=0, lt=1
    )
    test_share: float = _data(
        0.15, "Fraction of the training data for the test, if there is no test split.", gt=0, lt=1
    )
    data_seed: int = _data(0, "Seed of splits and long tails; shared by the runs of a comparison.", ge=0, lt=2**64)
    longtail: str | None = _data(
        None, "Subsample the training data to a long tail: exponential:100, step:10, first-4000:6/2."
    )
    open_set: str | None = _data(
        None, "Samples of unknown classes, to test whether they are rejected: an .npz or a folder of images."
    )
    open_classes: Names | None = _data(
        None, "Classes of the data to hold out as unknown, comma-separated names or indices."
    )
    class_names: Names | None = _data(None, "Class names in order, comma-separated.")
    ignore_index: int | None = _data(None, "Label to ignore.")
    label_column: Names | None = _data(None, "Table column of labels, or several columns of 0 and 1.")
    path_column: str | None = _data(None, "Table column of image paths.")
    text_column: str | None = _data(None, "Table column of texts.")
    split_column: str | None = _data(None, "Table column with train, val or test.")
    separator: str | None = _data(None, "Separator of several labels in one column.")
    image_root: str | None = _data(None, "Folder that paths in tables, lists and COCO files are relative to.")
    skip_bad_images: bool = _data(False, "Skip image files that cannot be decoded, instead of raising an error.")
    cache: bool = _data(False, "Decode image files once, even if a split takes more than 1 GiB.")
    workers: int | None = _data(
        None,
        "Processes that decode image files; None decodes small data once, others in cores minus one, at most 8.",
        ge=0,
        le=256,
    )
    allow_empty: bool = _data(False, "Allow classes without training samples, and validation data with a single class.")
    augment: str = _data(
        "",
        "Augmentation of training images, comma-separated: flip, crop:4, colour:0.4, erase:0.5, erase-noise:0.5, "
        "mixup:0.2, cutmix:1, randaugment:2:0.3.",
    )
    scaling: Literal["standard", "unit"] = _data(
        "standard", "standard: inputs of mean 0 and standard deviation 1; unit: pixels in [0, 1], features unchanged."
    )
    sampler: Sampler = _data("none", f"Sampling of classes: {', '.join(get_args(Sampler))}.")

    model: str = _model(
        "auto",
        "linear, mlp, resnet32, resnet110, wideresnet26-10, densenet121, resnet18, resnet50, resnet101, resnet152, "
        "unet, deeplabv3, deeplabv3-resnet50, deeplabv3-resnet101, deeplabv3-resnet152, text-bow, text-cnn, "
        "text-pooling-cnn; timm:NAME, torchvision:NAME, "
        "FILE.py:function.",
    )
    model_options: dict[str, Any] = _model({}, "Additional arguments of the model.")
    word_vectors: str | None = _model(
        None, "Texts: file of word vectors in GloVe's format to start from; width in model_options is that of the file."
    )
    prior_bias: bool = _model(False, "Multi-label: initialise the bias of each label from its frequency.")

    epochs: int = _train(30, "Number of epochs.", ge=1, le=1_000_000)
    batch_size: int | None = _train(
        None,
        "Samples per step over all devices; None for 128 (segmentation 8), less for small data.",
        ge=1,
        le=2**24,
    )
    optimizer: Literal["sgd", "momentum", "adagrad", "adamw"] = _train(
        "adamw", "sgd (with Nesterov momentum), momentum (SGD without), adagrad or adamw."
    )
    lr: float | None = _train(
        None, "Maximum learning rate; None for 0.1 (sgd, momentum), 0.01 (adagrad) or 0.001 (adamw).", gt=0
    )
    weight_decay: float | None = _train(
        None, "Weight decay; None for 0.0005 (sgd, momentum), 0 (adagrad) or 0.01 (adamw).", ge=0
    )
    momentum: float = _train(0.9, "SGD momentum.", ge=0, lt=1)
    schedule: Literal["cosine", "step", "one-cycle", "constant"] = _train(
        "cosine", "Learning rate schedule: cosine, step, one-cycle or constant."
    )
    warmup: float = _train(0.05, "Fraction of the training over which the learning rate increases from 0.", ge=0, lt=1)
    milestones: Shares = _train(
        (0.8, 0.9), "Schedule step: fractions of the training at which the learning rate decreases."
    )
    step_factor: float = _train(0.1, "Schedule step: factor of the decrease.", gt=0, lt=1)
    clip: float | None = _train(None, "Maximum norm of the gradient.", gt=0)
    ema: float | None = _train(
        None,
        "Decay of an exponential moving average of the weights, e.g. 0.999, which is then evaluated and saved.",
        gt=0,
        lt=1,
    )
    monitor: str | None = _train(
        None,
        "Validation metric that selects the checkpoint, e.g. nll, ece, accuracy; None for mean_class_accuracy, "
        "mean_average_precision (multi-label), mean_iou (segmentation).",
    )
    checkpoint: Literal["best", "last"] = _train("best", "Keep the best epoch on validation data, or the last.")

    accelerator: str = _machine("auto", "cpu, gpu, ...; passed on to Lightning.")
    devices: Text = _machine("1", "Number or list of devices; passed on to Lightning.")
    nodes: int = _machine(1, "Number of machines; passed on to Lightning.", ge=1, le=100_000)
    strategy: str = _machine("auto", "ddp, ...; passed on to Lightning.")
    precision: Text = _machine("32-true", "32-true, bf16-mixed, 16-mixed, ...; passed on to Lightning.")
    deterministic: bool = _machine(False, "Use deterministic algorithms only; slower on GPUs.")
    compile: Compile = _machine(
        "none",
        f"Mode of torch.compile for the training steps: {', '.join(get_args(Compile))}; the first step compiles.",
    )

    temperature_by: Literal["nll", "ece"] = _record(
        "nll", "What the temperature minimises on validation data: nll, or ece as in the focal-calibration paper."
    )
    logger: str = _record("csv", "csv, tensorboard, none, wandb, mlflow, ..., or module:Class.")

    @field_validator("open_classes")
    @classmethod
    def _one_open_set(cls, classes: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if classes is not None and info.data.get("open_set") is not None:
            raise ValueError(
                f"open_classes and open_set exclude each other, got both (open_set "
                f"{info.data['open_set']}); give one of the two"
            )
        return classes

    @field_validator("data")
    @classmethod
    def _there(cls, data: str, info: ValidationInfo) -> str:
        missing = nothing_there(data) if (info.context or {}).get("here") else None
        if missing is not None:
            raise ValueError(missing)
        return data

    @field_validator("augment")
    @classmethod
    def _known_augmentation(cls, text: str, info: ValidationInfo) -> str:
        if not is_quick(info):
            from equipoise.data.augment import augmentations_from

            augmentations_from(text, num_classes=2)
        return text

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str, info: ValidationInfo) -> str:
        if name != "auto" and not is_quick(info):
            from equipoise.models.registry import check_name

            check_name(name)
        return name

    def differing(self, stored: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
        """Recorded settings that differ from this spec, with both values; ``but`` names settings to skip."""
        differing = {}
        for name, wanted in plain(self.model_dump()).items():
            known = stored.get(
                name, plain(type(self).model_fields[name].get_default())
            )  # recorded before the setting existed
            places = name in PLACES and isinstance(known, str) and isinstance(wanted, str)
            equal = same_place(known, wanted) if places else known == wanted
            if name == "task" and isinstance(known, str) and isinstance(wanted, str):
                equal = is_same_task(known, wanted)
            if name not in but and not equal and not (name in EXPRESSIONS and same(known, wanted)):
                differing[name] = known, wanted
        return differing

    @classmethod
    def check(
        cls, settings: Mapping[str, Any], where: str = "settings", *, quick: bool = False, here: bool = False
    ) -> Self:
        """Validate settings; a ``SpecError`` lists all errors.

        Args:
            settings: by name.
            where: name of the settings in the error.
            quick: skip checks that need torch, to report simple errors immediately.
            here: check that the data exist.
        """
        try:
            return cls.model_validate(
                {str(key): value for key, value in settings.items()}, context={"quick": quick, "here": here}
            )
        except ValidationError as error:
            raise SpecError(where, [_mistake(one, cls) for one in error.errors()]) from None


ROW_SETTINGS = frozenset(
    name
    for name, field in SharedSpec.model_fields.items()
    if (isinstance(extra := field.json_schema_extra, dict) and extra["group"] == "Training" and name != "monitor")
    or name in ("augment", "sampler")
)
"""Settings that can differ between rows of a comparison; data and monitor cannot."""


DATA_SETTINGS = tuple(
    name
    for name, field in SharedSpec.model_fields.items()
    if isinstance(extra := field.json_schema_extra, dict)
    and extra["group"] == "Data"
    and name not in ("workers", "augment", "sampler")
)
"""Settings that determine which data are trained on."""


class RunSpec(SharedSpec):
    """The settings of one run.

    >>> RunSpec(data="digits-lt", loss="focal:gamma=3").loss
    'focal(gamma=3)'
    """

    loss: str = _model(
        "auto",
        "A loss of `equipoise losses`, e.g. focal(gamma=3), ldam(weight=drw), ce + 0.5 * dice; or your own, "
        "FILE.py:function(key=value); auto is ce, or bce for multi-label data.",
    )
    method: str = _model(
        "none",
        f"A method instead of a loss: {', '.join(METHOD_NAMES[1:])}, e.g. sdn(feature=ce).",
    )
    stage_one: str | None = _model(
        None, "Methods with two stages: a finished run to start from; None trains the first stage inside this run."
    )
    seed: int = _train(
        0, "Random seed of the initial weights, the order of samples and the augmentation.", ge=0, lt=2**32
    )

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, text: str, info: ValidationInfo) -> str:
        if is_method(text):
            raise ValueError(f"it must be a loss, got the method {text}; give it as --method {text}")
        if text != "auto":
            check_loss_names(text)
            if not is_quick(info):
                from equipoise.train.rows import read_row

                _check_no_settings(text, read_row(text))
        return canonical(text)

    @field_validator("method")
    @classmethod
    def _known_method(cls, text: str, info: ValidationInfo) -> str:
        check_method_name(text)
        text = str(parse(text))
        if not is_quick(info):
            from equipoise.train.rows import read_row

            _check_no_settings(text, read_row(text))
        if text != "none" and info.data.get("loss", "auto") != "auto":
            raise ValueError(
                f"a method names its losses itself, got {text} and loss {info.data['loss']}; give one of them, and "
                f"losses as options of the method ({', '.join(METHOD_NAMES)}), e.g. bbn(loss=focal)"
            )
        return text

    @field_validator("stage_one")
    @classmethod
    def _of_two(cls, run: str | None, info: ValidationInfo) -> str | None:
        if run is None or is_quick(info):
            return run
        from equipoise.train.methods import METHODS, TwoStages, parse_method

        method = info.data.get("method")
        if method is not None and not isinstance(parse_method(method), TwoStages):
            two = ", ".join(name for name, kind in METHODS.items() if issubclass(kind, TwoStages))
            raise ValueError(f"it applies to methods with two stages only ({two}), got method {method}; omit it")
        return run


def _check_no_settings(text: str, row: Row) -> None:
    """Raise if the loss or method of a single run has training settings among its arguments."""
    if row.settings:
        names = ", ".join(f"{key}={value}" for key, value in row.settings)
        flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in row.settings)
        raise ValueError(
            f"settings beside the arguments of a loss are for the rows of equipoise compare, got {names} in {text}; "
            f"write {row.expression} and {flags}"
        )


def describe_differences(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """Describe settings that differ.

    >>> describe_differences({"lr": (0.1, 0.01), "classes": (["a", "b"], None)})
    'lr=0.1 (this one has 0.01), classes=a,b (this one has None)'
    """

    def shown(value: object) -> str:
        return shortened(",".join(map(str, value)) if isinstance(value, list) else str(value))

    return some(f"{name}={shown(known)} (this one has {shown(wanted)})" for name, (known, wanted) in differing.items())


def read_spec(path: Path) -> dict[str, Any]:
    """Settings of a YAML file, not yet checked."""
    try:
        settings = read_yaml(path)
    except FileNotFoundError:
        raise SpecError(
            str(path), [f"there is no such file of settings; check the path{_data_instead(path)}"]
        ) from None
    except IsADirectoryError:
        raise SpecError(str(path), [f"settings must be a YAML file, got a folder{_data_instead(path)}"]) from None
    except Exception as error:  # the content of a file can cause any error
        message = f"the file is not YAML: {' '.join(str(error).split()) or type(error).__name__}{_data_instead(path)}"
        raise SpecError(str(path), [message]) from error
    if not isinstance(settings, dict):
        raise SpecError(
            str(path),
            [f"there must be lines such as 'data: digits-lt', got {type(settings).__name__}{_data_instead(path)}"],
        )
    return settings


def _data_instead(path: Path) -> str:
    """A hint if the file is probably the data."""
    return "" if path.suffix in (".yaml", ".yml") else f"; if these are the data, write --data {path}"


def _mistake(error: ErrorDetails, spec: type[BaseModel]) -> str:
    """One line about one setting."""
    name, *inner = (str(part) for part in error["loc"])
    place = ".".join([name, *(part for part in inner if part.isdigit())])
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such setting; {nearest(name, spec.model_fields, otherwise='see --help')}"
    if error["type"] == "missing":
        return (
            f"{name}: it must be given, as --{name.replace('_', '-')} or as a line '{name}: ...' of a file of settings"
        )
    what = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{place}: {what}"
    advice = "; choose a number in that range" if error["type"].startswith(("less_than", "greater_than")) else ""
    return f"{place}: {what[0].lower()}{what[1:]}, got {shortened(repr(error['input']))}{advice}"
