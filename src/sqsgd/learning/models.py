"""The models: LeNet-5 and ResNet-110 with the paper's parameter counts, smaller ones, and custom models.

No model keeps running statistics, which would reach the server outside the privacy guarantee. A new model is
a row of MODELS.
"""

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from sqsgd.learning.factories import call_factory, find_named, is_factory_name, unknown_name
from sqsgd.learning.features import AS_MODELS, PRETRAINED

Shape: TypeAlias = tuple[int, ...]

_SAVED = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bfloat16, torch.float16, torch.float32, torch.float64,
}  # fmt: skip


def make_model(
    name: str,
    classes: int = 10,
    in_shape: Shape = (1, 28, 28),
    seed: int = 0,
    given: nn.Module | Callable[..., nn.Module] | None = None,
    *,
    head: torch.Tensor | None = None,
    intercept: bool = True,
) -> nn.Module:
    """Return a model, initialised from the seed alone; torch's global generator keeps its state.

    ``name``: a row of ``MODELS``, ``pretrained-linear``, which starts from the public weights ``head``, or
    ``package.module:factory``, which may take ``classes`` (or outputs) and ``in_shape``, that of an input.
    ``given``: a factory, or a module to copy with its weights, in place of the name's. ``linear`` has no
    ``intercept`` on features of unit length, nor on scaled tables, whose rows hold a constant: the clipped
    norm of a gradient then counts it as any column. ValueError for a model that cannot be trained.

    >>> sum(parameter.numel() for parameter in make_model("lenet5").parameters())
    119850
    """
    if isinstance(given, nn.Module):
        return _checked(name, copy.deepcopy(given))
    known = {**MODELS, PRETRAINED: _linear}
    if given is None and is_factory_name(name):
        given = find_named(name, "model")
        if isinstance(given, nn.Module):
            raise ValueError(f"model {name!r} is a module, not a factory; write a function that makes one")
    elif given is None and name not in known:
        raise unknown_name("model", name, [*known, *AS_MODELS])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        offered = {"classes": classes, "in_shape": in_shape, "intercept": intercept and name != PRETRAINED}
        made = call_factory(name, "model", given or known[name], **offered)
    model = _checked(name, made)
    if name == PRETRAINED:
        if head is None:
            needed = "needs features with a public head for these classes, such as font-digits"
            raise ValueError(f"model = {name!r} {needed}; model = 'linear' starts from zero")
        with torch.no_grad():
            next(model.parameters()).copy_(head)
    return model


class LeNet5(nn.Module):
    """119,850 parameters, as in the paper, which gives no widths; 64, 32 and 128 are the simplest."""

    def __init__(self, classes: int, in_shape: Shape) -> None:
        super().__init__()
        depth, *sizes = _image_shape("lenet5", in_shape, least=16)
        rows, columns = (((size - 4) // 2 - 4) // 2 for size in sizes)
        self.first, self.second = nn.Conv2d(depth, 64, 5), nn.Conv2d(64, 32, 5)
        self.head = _fully_connected((32 * rows * columns, 128, classes))
        _zero_biases(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Pooling before the ReLU gives the same values and gradients with a quarter of the ReLU's work.
        images = relu(max_pool2d(self.first(_channels_last(images)), 2))
        images = relu(max_pool2d(self.second(images), 2))
        return self.head(images.flatten(1))  # type: ignore[no-any-return]


class ResNet110(nn.Module):
    """ResNet-110 for small images (He et al. 2016), pre-activated (2016b): the original order diverges."""

    def __init__(self, classes: int, in_shape: Shape, *, each: int = 18) -> None:
        super().__init__()
        depth, _, _ = _image_shape(f"resnet{6 * each + 2}", in_shape)
        widths = [16, *(width for width in (16, 32, 64) for _ in range(each))]
        self.stem = nn.Conv2d(depth, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*map(_Block, widths[:-1], widths[1:]))
        self.norm = _normaliser(64)
        self.head = nn.Linear(64, classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        _zero_biases(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(_channels_last(images)))
        return self.head(relu(self.norm(features)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        stride = 1 if width_in == width_out else 2
        self.norm_first = _normaliser(width_in)
        self.first = nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=False)
        self.norm_second = _normaliser(width_out)
        self.second = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(width_in, width_out, 1, stride=stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        branch = self.first(relu(self.norm_first(features)))
        branch = self.second(relu(self.norm_second(branch)))
        return self.shortcut(features) + branch  # type: ignore[no-any-return]


class Gru(nn.Module):
    """Scores of the token after each of a sequence; written out, because ``vmap`` lacks ``nn.GRU``."""

    def __init__(self, classes: int, in_shape: Shape, *, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        if len(in_shape) != 1:
            raise ValueError(f"model 'gru' takes sequences of tokens of shape (length,), not {in_shape}")
        self.embedding = nn.Embedding(classes, width)
        self.given = nn.Linear(width, 3 * hidden)
        self.recurrent = nn.Linear(hidden, 3 * hidden, bias=False)
        self.head = nn.Linear(hidden, classes)
        self._split = (2 * hidden, hidden)
        nn.init.uniform_(self.given.weight, -(hidden**-0.5), hidden**-0.5)
        _zero_biases(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        given = self.given(self.embedding(tokens))
        state = torch.zeros_like(given[:, 0, : self._split[1]])
        states = []
        for step in given.unbind(1):
            gates, candidate = step.split(self._split, dim=1)
            more_gates, more_candidate = self.recurrent(state).split(self._split, dim=1)
            keep, reset = torch.sigmoid(gates + more_gates).chunk(2, dim=1)
            fresh = torch.tanh(candidate + reset * more_candidate)
            state = fresh + keep * (state - fresh)
            states.append(state)
        return self.head(torch.stack(states, dim=1))  # type: ignore[no-any-return]


def _mlp(classes: int, in_shape: Shape) -> nn.Module:
    """The 2NN of McMahan et al. 2017: two hidden layers of 200, 199,210 parameters; any input shape."""
    model = nn.Sequential(nn.Flatten(), _fully_connected((math.prod(in_shape), 200, 200, classes)))
    _zero_biases(model)
    return model


def _tanh_cnn(classes: int, in_shape: Shape) -> nn.Module:
    """26,010 parameters on digits: the network of Papernot et al. 2020 for gradients of single records."""
    depth, *sizes = _image_shape("tanh-cnn", in_shape, least=16)
    rows, columns = (((size - 2) // 2 - 4) // 2 for size in sizes)
    first, second = nn.Conv2d(depth, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    convolutions = [first, nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(32 * rows * columns, 32), nn.Tanh(), nn.Linear(32, classes))


def _linear(classes: int, in_shape: Shape, intercept: bool = True) -> nn.Sequential:
    """Softmax or least-squares regression, initialised to zero."""
    layer = nn.Linear(math.prod(in_shape), classes, bias=intercept)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "gru": Gru,
    "linear": _linear,
    "mlp": _mlp,
    "resnet20": partial(ResNet110, each=3),  # 270,704 parameters, a sixth of the time of ResNet-110
    "resnet110": ResNet110,
    "tanh-cnn": _tanh_cnn,
}


def _fully_connected(widths: tuple[int, ...]) -> nn.Sequential:
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _normaliser(channels: int) -> nn.Module:
    # Groups of 8 train better in ResNet-110 than layer norm or instance norm.
    return nn.GroupNorm(channels // 8, channels, affine=False)


def _zero_biases(model: nn.Module) -> None:
    # LeNet-5 then tolerates a rate of 0.3; torch's random biases left one seed of three at chance level.
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    # Pooling is several times faster with the channels last; parameters keep torch's default layout.
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same memory; only the strides tell torch which one is meant.
    _, _, height, width = images.shape
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))


def _image_shape(name: str, in_shape: Shape, least: int = 1) -> Shape:
    if len(in_shape) != 3:
        instead = "for features or other vectors use linear or mlp"
        raise ValueError(f"model {name!r} takes images (channels, height, width), not {in_shape}; {instead}")
    if min(in_shape[1:]) < least:
        shown = " x ".join(map(str, in_shape[1:]))
        raise ValueError(f"model {name!r} needs images of at least {least} x {least}, not {shown}")
    return in_shape


def _checked(name: str, model: object) -> nn.Module:
    """Return the model, if all of it can be trained and saved, and it keeps nothing of the clients' data."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned a {type(model).__name__}, not a torch.nn.Module")
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(f"model {name!r} has lazy layers; run one batch through it in the factory")
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not any(parameter.numel() for parameter in trainable):
        raise ValueError(f"model {name!r} has no trainable parameter")
    if wrong := {str(parameter.dtype) for parameter in trainable} - {"torch.float32"}:
        raise ValueError(f"model {name!r} has {', '.join(sorted(wrong))} parameters; call .float() on it")
    for path, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None and module.training:
            why = "keeps running statistics of the clients' data, which are not private; use GroupNorm, or"
            layer = f"layer {path!r} ({type(module).__name__})"
            raise ValueError(f"model {name!r}: {layer} {why} call .eval() on a frozen part")
    for path, value in model.state_dict().items():
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        if kind not in _SAVED or value.layout != torch.strided:
            remedy = "which no file can hold; convert or remove it, and get_extra_state if that makes it"
            raise ValueError(f"model {name!r}: {path!r} in its state_dict is a {kind}, {remedy}")
    return model
