"""The models: sizes, published numbers of parameters, modes, precisions, compilation, and that they learn."""

import io
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from equipoise.models import (
    MLP,
    MODELS,
    CifarResNet,
    DeepLabV3,
    DenseNet,
    ResNet,
    ResNetBody,
    TextBow,
    TextCNN,
    TextPoolingCNN,
    UNet,
    build_model,
    find_classifier,
    set_word_vectors,
)
from equipoise.models.resnet import BasicBlock, Bottleneck, PaddedShortcut
from tests.marks import slow
from tests.models.cases import BATCH, DEEPER, IMAGE, IMAGES, MAPS, OPTIONS, TEXT, VOCABULARY, C, batch, build, says

each = pytest.mark.parametrize("name", OPTIONS)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_cases_cover_every_model():
    assert {*OPTIONS, *DEEPER} == set(MODELS)


@pytest.mark.parametrize("name", DEEPER)
def test_deeper_models_are_the_same_class_with_more_blocks(name):
    with torch.device("meta"):
        model = build_model(name, num_classes=C, input_shape=(3, 32, 32))
        other = build_model(DEEPER[name], num_classes=C, input_shape=(3, 32, 32))
        logits = model.eval()(torch.empty(2, 3, 32, 32))
    assert type(model) is type(other)
    assert parameters(model) > parameters(other)
    assert logits.shape == ((2, C, 32, 32) if MODELS[name].gives == "maps" else (2, C))
    assert find_classifier(model).num_classes == C
    entry, shallow = MODELS[name], MODELS[DEEPER[name]]
    assert (entry.takes, entry.gives) == (shallow.takes, shallow.gives)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_logits_have_the_shape_that_the_entry_promises(name):
    expected = (BATCH, C, *IMAGE[1:]) if MODELS[name].gives == "maps" else (BATCH, C)
    assert build(name)(batch(name)).shape == expected
    assert (name in MAPS, name in TEXT) == (MODELS[name].gives == "maps", MODELS[name].takes == "tokens")


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("size", [(33, 47), (1, 1), (2, 19), (40, 8)], ids=str)
def test_images_of_any_size(name, size):
    logits = build(name).eval()(torch.randn(2, 3, *size))
    assert logits.shape == ((2, C, *size) if name in MAPS else (2, C))
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", IMAGES)
def test_channels_come_from_the_input_shape(name):
    model = build(name, input_shape=(1, 16, 16))
    assert model.eval()(torch.randn(2, 1, 16, 16)).shape[:2] == (2, C)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
@pytest.mark.parametrize("fine", [False, True])
def test_deeplab_at_every_output_stride(stem, fine):
    stride = {"imagenet": 16, "small": 4}[stem] // (2 if fine else 1)
    model = DeepLabV3(C, stem=stem, output_stride=stride, width=8).eval()
    seen = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    assert model(torch.randn(1, 3, 33, 47)).shape == (1, C, 33, 47)
    assert seen == [(1, 8, math.ceil(33 / stride), math.ceil(47 / stride))]
    dilations = [branch[0].dilation[0] for branch in model.pyramid.branches]
    assert dilations == ([1, 12, 24, 36] if fine else [1, 6, 12, 18])


def test_deeplab_on_a_deeper_backbone():
    model = DeepLabV3(C, backbone="resnet50", width=8).eval()
    assert model.backbone.out_channels == 2048
    assert model(torch.randn(1, 3, 20, 20)).shape == (1, C, 20, 20)


def test_unet_of_any_depth():
    for depth in (1, 2, 5):
        model = UNet(C, width=4, depth=depth).eval()
        assert model(torch.randn(1, 3, 21, 10)).shape == (1, C, 21, 10)
        assert len(model.down) == len(model.up) + 1 == depth


def test_unet_joins_both_paths_at_every_level():
    torch.manual_seed(0)
    model = UNet(C, width=4)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for block, skip in zip(model.up, (16, 8, 4), strict=True):
        gradient = block[0].weight.grad
        assert gradient.shape[:2] == (skip, 3 * skip)
        assert gradient[:, :skip].count_nonzero() > 0
        assert gradient[:, skip:].count_nonzero() > 0


def test_the_stem_of_small_images_keeps_their_size():
    sizes = {stem: ResNetBody(stem=stem).eval()(torch.randn(1, 3, 64, 64)).shape[-2:] for stem in ("imagenet", "small")}
    assert sizes == {"imagenet": (2, 2), "small": (8, 8)}


@pytest.mark.parametrize("length", [1, 2, 30])
@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_texts_of_any_length(name, length, dtype):
    tokens = torch.randint(0, VOCABULARY, (3, length)).to(dtype)
    assert build(name).eval()(tokens).shape == (3, C)


# ---------------------------------------------------------------------------------------------------------------------
# Published numbers
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_classes", "options", "count"),
    [
        ("resnet32", 10, {}, 464_154),
        ("resnet32", 100, {}, 470_004),
        ("resnet32", 10, {"shortcut": "B"}, 466_906),
        ("resnet18", 1000, {}, 11_689_512),
        ("resnet50", 1000, {}, 25_557_032),
        # torchvision's documentation of resnet101, resnet152 and densenet121
        ("resnet101", 1000, {}, 44_549_160),
        ("resnet152", 1000, {}, 60_192_808),
        ("densenet121", 1000, {}, 7_978_856),
        # Net/densenet.py of torrvision/focal_calibration, counted by hand: without the batch norm of the stem (128), a
        # stem of 3x3 instead of 7x7 (7,680 fewer), and 10 outputs
        ("densenet121", 10, {"stem": "small"}, 7_978_856 - 128 - 7_680 - 990 * 1_025),
        # 20newsgroup_train.py of the same: the three convolutions, fc1 and fc2 of NewsGroup/ng_model.py, the embedding
        (
            "text-pooling-cnn",
            20,
            {"vocabulary": 20_000},
            (500 + 1) * 128 + 2 * (640 + 1) * 128 + 129 * 128 + 129 * 20 + 2_000_000,
        ),
        ("linear", 10, {"input_shape": (28, 28)}, 7_850),
        ("mlp", 10, {"input_shape": (784,), "hidden": (300, 100)}, 266_610),  # LeCun et al. 1998, LeNet-300-100
    ],
)
def test_numbers_of_parameters(name, num_classes, options, count):
    with torch.device("meta"):
        assert parameters(build_model(name, num_classes=num_classes, **options)) == count


def test_deeper_resnets_have_their_published_sizes():
    with torch.device("meta"):
        assert parameters(ResNet(1000, depth=34)) == 21_797_672
        assert parameters(ResNet(1000, depth=101)) == 44_549_160
        assert parameters(ResNet(1000, depth=152)) == 60_192_808
        # table 6 of the paper: 0.27, 0.66, 0.85 and 1.7 million
        counts = [round(parameters(CifarResNet(10, depth=depth)) / 1e6, 2) for depth in (20, 44, 56)]
        deep, wide = (parameters(build_model(name, num_classes=10)) for name in ("resnet110", "wideresnet26-10"))
    assert counts == [0.27, 0.66, 0.85]
    assert round(deep / 1e6, 1) == 1.7
    assert round(wide / 1e6, 1) == 36.5  # Zagoruyko and Komodakis 2016, table 5, which counts its 1x1 layers: WRN-28-10


def test_a_wide_network_has_wide_stages_and_a_narrow_stem():
    with torch.device("meta"):
        model = build_model("wideresnet26-10", num_classes=10)
    assert model.conv1.out_channels == 16
    assert [len(stage) for stage in (model.layer1, model.layer2, model.layer3)] == [4, 4, 4]
    assert [stage[0].conv1.out_channels for stage in (model.layer1, model.layer2, model.layer3)] == [160, 320, 640]
    assert find_classifier(model).in_features == 640


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_a_wide_first_stage_has_a_shortcut(shortcut):
    model = CifarResNet(C, depth=8, width=2, widen=3, shortcut=shortcut).eval()
    assert model(torch.randn(2, 3, 9, 9)).shape == (2, C)
    assert model.layer1[0].downsample is not None


def test_a_dense_layer_keeps_its_input():
    model = build("densenet121").eval()
    layer = model.features.denseblock2.denselayer3
    x = torch.randn(2, layer.norm1.num_features, 5, 5)
    out = layer(x)
    assert out.shape == (2, x.shape[1] + 4, 5, 5)
    assert torch.equal(out[:, : x.shape[1]], x)


def test_parameters_of_densenet_are_named_as_published_weights_are():
    with torch.device("meta"):
        names = set(build_model("densenet121", num_classes=1000).state_dict())
    assert {
        "features.conv0.weight",
        "features.norm0.running_mean",
        "features.denseblock1.denselayer1.norm1.weight",
        "features.denseblock4.denselayer16.conv2.weight",
        "features.transition3.conv.weight",
        "features.norm5.bias",
        "classifier.weight",
    } <= names
    assert len(names) == 727  # densenet121 of torchvision


def test_parameters_of_resnets_are_named_as_published_weights_are():
    names = ["conv1.weight", *norm("bn1")]
    for stage, blocks in enumerate((2, 2, 2, 2), start=1):
        for block in range(blocks):
            here = f"layer{stage}.{block}"
            names += [f"{here}.conv1.weight", *norm(f"{here}.bn1"), f"{here}.conv2.weight", *norm(f"{here}.bn2")]
            if stage > 1 and block == 0:
                names += [f"{here}.downsample.0.weight", *norm(f"{here}.downsample.1")]
    assert list(ResNet(3).state_dict()) == [*names, "fc.weight", "fc.bias"]
    deep = ResNet(3, depth=50).state_dict()
    assert deep["layer1.0.conv3.weight"].shape == (256, 64, 1, 1)
    assert deep["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert deep["layer4.2.bn3.running_var"].shape == (2048,)


def norm(name):
    return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


@pytest.mark.parametrize("name", ["resnet18", "unet", "deeplabv3"])
def test_convolutions_start_with_he_normal_weights(name):
    model = build(name, width=32) if name == "unet" else build(name)
    last = model.get_classifier()
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d) and part is not last]
    checked = 0
    for convolution in convolutions:
        fan_out = convolution.out_channels * math.prod(convolution.kernel_size)
        scaled = convolution.weight * math.sqrt(fan_out / 2)
        if scaled.numel() > 3000:
            assert scaled.std().item() == pytest.approx(1, abs=6 / math.sqrt(2 * scaled.numel()))
            assert scaled.abs().max() > 3, "normal, not uniform"
            checked += 1
    assert checked > 5
    # The classifier does not: logits start near 0.
    assert build(name)(batch(name)).abs().mean() < 1


def test_blocks_can_start_as_the_identity():
    for block in (BasicBlock(16, 16), Bottleneck(16, 4)):
        x = torch.rand(2, 16, 5, 5)
        assert not torch.equal(block(x), x)
        nn.init.zeros_(block.last_norm.weight)
        assert torch.equal(block(x), x)
    for name in ("resnet32", "resnet18", "deeplabv3"):
        blocks = [part for part in build(name, zero_init_residual=True).modules() if isinstance(part, BasicBlock)]
        assert len(blocks) == (15 if name == "resnet32" else 8)
        assert all((part.last_norm.weight == 0).all() for part in blocks)
        assert all((part.bn1.weight == 1).all() for part in blocks)
    plain = [part for part in build("resnet18").modules() if isinstance(part, BasicBlock)]
    assert all((part.last_norm.weight == 1).all() for part in plain)


def test_option_a_takes_every_second_pixel_and_pads_channels_with_zeros():
    x = torch.randn(2, 3, 5, 4)
    shortcut = PaddedShortcut(3, stride=2)
    around = shortcut(x)
    assert around.shape == (2, 6, 3, 2)
    assert torch.equal(around[:, 1:4], x[:, :, ::2, ::2])
    assert around.count_nonzero() == x[:, :, ::2, ::2].numel()
    assert not list(shortcut.parameters())


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_dilated_stages_compute_the_same_features_on_a_finer_grid(depth, stem):
    """What a stride skips is computed as well, what it keeps stays the same."""
    torch.manual_seed(0)
    plain = ResNetBody(depth, stem=stem).eval()
    natural = 32 if stem == "imagenet" else 8
    x = torch.randn(1, 3, 70, 45) if stem == "imagenet" else torch.randn(1, 3, 21, 12)
    expected = plain(x)
    for finer in (2, 4):
        dilated = ResNetBody(depth, stem=stem, output_stride=natural // finer).eval()
        dilated.load_state_dict(plain.state_dict())
        assert_close(dilated(x)[:, :, ::finer, ::finer], expected, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Text
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("name", TEXT)
def test_padding_changes_nothing(name, padding):
    model = build(name, padding=padding).eval()
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):  # so that a window of padding would say something
            nn.init.uniform_(parameter, 0.5, 1.0)
    tokens = torch.tensor([[3, 5, 2], [4, 4, padding], [8, padding, padding], [padding, padding, padding]])
    logits = model(tokens)
    longer = model(F.pad(tokens, (0, 6), value=padding))
    assert_close(longer, logits)
    assert_close(model(tokens[1:2, :2]), logits[1:2])
    assert_close(model(tokens[2:3, :1]), logits[2:3])
    assert logits.isfinite().all()


def test_a_bag_has_no_order_and_a_convolution_has():
    tokens = batch("text-bow", 2)
    bag, *convolutions = (build(name).eval() for name in TEXT)
    assert_close(bag(tokens.flip(1)), bag(tokens))
    for convolution in convolutions:
        assert (convolution(tokens.flip(1)) - convolution(tokens)).abs().max() > 1e-3


def test_the_pooling_network_is_the_published_one_inside_a_long_text():
    """Away from both ends of a text, features are those of valid convolutions and maxima, as published."""
    torch.manual_seed(0)
    model = build("text-pooling-cnn", width=6).eval()
    tokens = torch.randint(1, VOCABULARY, (2, 60))
    seen = []
    model.hidden.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(tokens)
    features = model.embedding(tokens).transpose(1, 2)
    for number, convolution in enumerate(model.convolutions):
        features = F.relu(convolution(features))
        if number < 2:
            features = F.max_pool1d(features, 5, stride=1)
    assert features.shape[2] == 60 - 5 * 4
    inside = features.amax(2)
    assert (seen[0] >= inside - 1e-6).all()  # the windows at the end of the text come on top
    assert (seen[0] - inside).abs().lt(1e-6).float().mean() > 0.5


@pytest.mark.parametrize("name", TEXT)
def test_word_vectors(name):
    model = build(name, width=3)
    before = model.embedding.weight.detach().clone()
    vectors = np.zeros((VOCABULARY, 3))
    vectors[5] = [0.25, -1.0, 2.0]
    vectors[7] = [0.0, 0.0, 3.0]
    set_word_vectors(model, vectors)
    after = model.embedding.weight
    assert after[5].tolist() == [0.25, -1.0, 2.0]
    assert after[7].tolist() == [0.0, 0.0, 3.0]
    assert after.requires_grad
    others = [i for i in range(VOCABULARY) if i not in (5, 7)]
    assert torch.equal(after[others], before[others])
    with pytest.raises(ValueError, match=says("vectors", "(20, 3)", "got (20, 2)", "width")):
        set_word_vectors(model, vectors[:, :2])


def test_word_vectors_need_an_embedding():
    with pytest.raises(TypeError, match=says("model", ".embedding", "got MLP", "text-bow")):
        set_word_vectors(MLP(3, 2), np.zeros((3, 2)))


def test_a_bag_is_the_mean_of_its_words():
    model = build("text-bow", hidden=())
    mean = model.embedding.weight[[3, 5, 5]].mean(0)
    assert_close(model(torch.tensor([[3, 5, 5, 0]]))[0], model.classifier(mean))


# ---------------------------------------------------------------------------------------------------------------------
# Modes and gradients
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_gradients_reach_every_parameter(name):
    model = build(name)
    logits = model(batch(name))
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.count_nonzero() > 0, key


@each
def test_evaluation_is_deterministic_and_row_by_row(name):
    model, x = build(name).eval(), batch(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    logits = model(x)
    assert torch.equal(model(x), logits)
    assert_close(model(x[1:2]), logits[1:2], rtol=1e-4, atol=1e-5)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", [*IMAGES, "mlp"])
def test_training_updates_the_running_statistics(name):
    model = build(name, batch_norm=True) if name == "mlp" else build(name)
    model(batch(name))
    norms = [part for part in model.modules() if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert norms
    for part in norms:
        assert part.num_batches_tracked == 1
        assert part.running_mean.count_nonzero() > 0
    x = batch(name)
    assert not torch.allclose(model(x), model.eval()(x))


@pytest.mark.parametrize("name", ["mlp", "resnet18", "unet", "deeplabv3", *TEXT])
def test_dropout_is_for_training_only(name):
    model = build(name, dropout=0.5).eval()
    x = batch(name)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.allclose(model(x), model(x))
    model = build(name, dropout=0.0)
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("name", ["resnet18", "text-bow", "mlp", "unet"])
def test_inputs_are_not_written(name):
    x = batch(name)
    kept = x.clone()
    build(name)(x)
    assert torch.equal(x, kept)


@each
def test_state_survives_a_file(name):
    model, other = build(name), build(name, seed=7)
    x = batch(name)
    model(x)  # running statistics of their own
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert not torch.allclose(other.eval()(x), model.eval()(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("name", ["mlp", "resnet32", "unet", *TEXT])
def test_the_same_seed_gives_the_same_weights(name):
    one, same, other = (build(name, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


# ---------------------------------------------------------------------------------------------------------------------
# Precisions, memory formats, compilation
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_bfloat16_autocast(name):
    model, x = build(name), batch(name)
    plain = model.eval()(x)
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        model(x).float().square().mean().backward()
        half = model.eval()(x)
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()
    assert half.shape == plain.shape
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["linear", "mlp", "unet", *TEXT])
def test_bfloat16_is_close_where_little_is_normalised(name):
    model, x = build(name).eval(), batch(name)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    assert_close(half.float(), model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last(name):
    model, x = build(name).eval(), batch(name)
    expected = model(x)
    model.to(memory_format=torch.channels_last)
    logits = model(x.contiguous(memory_format=torch.channels_last))
    assert_close(logits, expected, rtol=1e-3, atol=1e-4)
    if name in MAPS:
        assert logits.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "mlp",
        "resnet32",
        "unet",
        *TEXT,
        *slow("wideresnet26-10", "densenet121", "resnet18", "resnet50", "deeplabv3"),
    ],
)
def test_compiles_without_a_break(name):
    torch._dynamo.reset()
    model, x = build(name), batch(name)
    model.eval()
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(x), expected)


@pytest.mark.parametrize("name", ["unet", "text-cnn"])
def test_compiled_training_has_the_gradients_of_eager_training(name):
    torch._dynamo.reset()
    options = {"dropout": 0.0} if name == "text-cnn" else {"depth": 2}
    gradients = []
    for compiled in (False, True):
        model = build(name, **options)
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
        run(batch(name)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


# ---------------------------------------------------------------------------------------------------------------------
# Learning
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "resnet50"])
def test_learns_sixteen_random_samples_by_heart(name):
    options = {"dropout": 0.0} if "dropout" in MODELS[name].options else {}
    model = build(name, **options, **({"width": 64} if name == "deeplabv3" else {}))
    x = batch(name, 16)
    draw = torch.Generator().manual_seed(3)
    if name in MAPS:  # each quarter of an image has a class
        labels = torch.randint(C, (16, 2, 2), generator=draw).repeat_interleave(8, 1).repeat_interleave(8, 2)
    else:
        labels = torch.randint(C, (16,), generator=draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 if name in ("linear", "mlp", "unet", *TEXT) else 0.002)
    for _ in range(60):
        optimizer.zero_grad(set_to_none=True)
        logits = model(x)
        right = (logits.argmax(1) == labels).float().mean()
        if right > 0.95:
            break
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    assert right > 0.95


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CifarResNet(3, depth=33), says("depth", "6n + 2", "got 33", "32")),
        (lambda: CifarResNet(3, depth=2), says("depth", "got 2")),
        (lambda: CifarResNet(3, shortcut="C"), says("shortcut", "'A', 'B'", "got 'C'")),
        (lambda: CifarResNet(3, width=0), says("width", "got 0")),
        (lambda: ResNet(3, depth=19), says("depth", "18, 34, 50, 101, 152", "got 19")),
        (lambda: ResNet(3, stem="tiny"), says("stem", "'imagenet', 'small'", "got 'tiny'")),
        (lambda: ResNet(3, dropout=1.0), says("dropout", "[0, 1)", "got 1.0")),
        (lambda: ResNetBody(output_stride=4), says("output_stride", "(8, 16, 32)", "'imagenet'", "got 4")),
        (lambda: ResNetBody(stem="small", output_stride=16), says("output_stride", "(2, 4, 8)", "'small'", "got 16")),
        (lambda: DeepLabV3(3, output_stride=32), says("output_stride", "16 or 8", "got 32", "stem")),
        (lambda: DeepLabV3(3, stem="small", output_stride=16), says("output_stride", "4 or 2", "got 16", "stem")),
        (lambda: DeepLabV3(3, backbone="vgg16"), says("backbone", "'resnet18'", "got 'vgg16'")),
        (lambda: DeepLabV3(3, rates=(6, 0)), says("rates", "got (6, 0)")),
        (lambda: DeepLabV3(3, width=0), says("width", "got 0")),
        (lambda: DeepLabV3(3, dropout=-0.1), says("dropout", "got -0.1")),
        (lambda: UNet(3, depth=0), says("depth", "got 0")),
        (lambda: UNet(3, width=0), says("width", "got 0")),
        (lambda: UNet(3, dropout=2), says("dropout", "got 2")),
        (lambda: MLP(4, 3, hidden=(8, 0)), says("hidden", "got (8, 0)")),
        (lambda: MLP(4, 3, hidden=8), says("hidden", "sequence", "got 8", "(8, 8)")),
        (lambda: MLP(4, 3, dropout=1.5), says("dropout", "got 1.5")),
        (lambda: TextBow(10, 3, padding=10), says("padding", "[0, 9]", "got 10")),
        (lambda: TextCNN(10, 3, padding=-1), says("padding", "[0, 9]", "got -1")),
        (lambda: TextCNN(10, 3, windows=()), says("windows", "at least one", "got none")),
        (lambda: TextCNN(10, 3, windows=(3, 0)), says("windows", "got (3, 0)")),
        (lambda: TextCNN(10, 3, maps=0), says("maps", "got 0")),
        (lambda: TextPoolingCNN(10, 3, window=0), says("window", "got 0")),
        (lambda: TextPoolingCNN(10, 3, dropout=1), says("dropout", "got 1")),
        (lambda: CifarResNet(3, widen=0), says("widen", "got 0")),
        (lambda: DenseNet(3, stem="tiny"), says("stem", "'imagenet', 'small'", "got 'tiny'")),
        (lambda: DenseNet(3, blocks=(6, 0)), says("blocks", "got (6, 0)")),
        (lambda: DenseNet(3, growth=0), says("growth", "got 0")),
        (lambda: TextBow(0, 3), says("vocabulary", "got 0")),
        (lambda: CifarResNet(3, in_channels=0), says("in_channels", "got 0")),
        (lambda: CifarResNet(3, depth="32"), says("depth", "got '32'")),
        (lambda: TextCNN(10, 3, dropout=1), says("dropout", "got 1")),
    ],
)
def test_arguments_that_make_no_model(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_width_must_be_an_integer():
    with pytest.raises(TypeError, match=says("width", "integer", "got 1.5")):
        TextCNN(10, 3, width=1.5)


def test_deeplab_trains_on_two_images_at_least():
    model = build("deeplabv3")
    with pytest.raises(ValueError, match=says("a batch", "at least 2 images", "got 1 image", "drop_last")):
        model(batch("deeplabv3", 1))
    assert model(batch("deeplabv3", 2)).isfinite().all()
    assert model.eval()(batch("deeplabv3", 1)).isfinite().all()


def test_word_vectors_leave_padding_at_zero():
    model = build_model("text-cnn", num_classes=2, vocabulary=3, width=2)
    set_word_vectors(model, torch.ones(3, 2))
    assert model.embedding.weight.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
