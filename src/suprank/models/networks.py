"""timm's networks by name: short aliases for the paper's, and suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from http.client import HTTPException
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from suprank.models.config import ImageInput, Interpolation
from suprank.models.weights import DownloadError, copy_state, load_weights
from suprank.system import torchvision_operators

torchvision_operators.declare()  # timm imports torchvision

import timm  # noqa: E402
from timm.layers.patch_embed import PatchEmbed as PatchEmbed  # noqa: E402 (`as`: passed on to backbone.py)

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn

HUB_SECONDS = 5.0  # until the hub counts as out of reach


class NetworkSource(NamedTuple):
    """The timm network of an alias, and the timm weights that go into it."""

    network: str
    weights: str


ALIASES = {  # the paper's backbones, with the weights its authors start from
    "resnet18": NetworkSource("resnet18.tv_in1k", "resnet18.tv_in1k"),
    "resnet34": NetworkSource("resnet34.tv_in1k", "resnet34.tv_in1k"),
    "resnet50": NetworkSource("resnet50.tv_in1k", "resnet50.tv_in1k"),
    "resnet101": NetworkSource("resnet101.tv_in1k", "resnet101.tv_in1k"),
    "deit_small": NetworkSource("deit_small_patch16_224.fb_in1k", "deit_small_distilled_patch16_224.fb_in1k"),
    "deit_base": NetworkSource("deit_base_patch16_224.fb_in1k", "deit_base_distilled_patch16_224.fb_in1k"),
    "vit_base": NetworkSource("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
}


def create_network(
    name: str,
    image_size: tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    weights: str | PathLike[str] | None = None,
) -> nn.Module:
    """The network of an alias or a timm name, without classifier, with random weights, timm's, or a file's."""
    if pretrained and weights is not None:
        raise ValueError(f"pretrained=True and weights={str(weights)!r} both name weights; give one of them.")
    source = find_network(name)
    if pretrained:
        return _create_pretrained(source, image_size)
    net = _create(source.network, image_size)
    if weights is not None:
        load_weights(net, weights)
    return net


def find_network(name: str) -> NetworkSource:
    """The network and weights of an alias or a timm name; a ValueError with the nearest names for any other."""
    if name in ALIASES:
        return ALIASES[name]
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, {*ALIASES, *timm.list_models()}, n=5, cutoff=0.5)
        nearest = f"the nearest are {', '.join(near)}" if near else "timm.list_models() lists them"
        raise ValueError(f"backbone={name!r} is not a network of timm {timm.__version__}; {nearest}.")
    tagged = timm.list_models(f"{architecture}.*", include_tags=True)
    if tag and name not in tagged:
        raise ValueError(
            f"backbone={name!r}: timm has no weights {tag!r} of {architecture}; it has {', '.join(tagged) or 'none'}."
        )
    return NetworkSource(name, name)


def network_names(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """The aliases and timm names that match a pattern such as "resnet*"; only those that timm has weights for, if asked."""
    return [
        *(alias for alias in ALIASES if fnmatchcase(alias, pattern)),
        *(name for name in timm.list_models(pattern, pretrained=pretrained, include_tags=False) if name not in ALIASES),
    ]


def _create(name: str, image_size: tuple[int, int] | None, *, pretrained: bool = False) -> nn.Module:
    """The network without classifier, for `image_size` and for changing sizes if it depends on them."""
    options: dict[str, Any] = {"dynamic_img_size": True, "img_size": image_size}
    while True:
        try:
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except TypeError as error:  # convolutional networks have neither option
            unknown = next((option for option in options if f"'{option}'" in str(error)), None)
            if unknown is None:
                raise
            del options[unknown]


def _create_pretrained(source: NetworkSource, image_size: tuple[int, int] | None) -> nn.Module:
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    out_of_reach = not offline and not _answers(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline or out_of_reach  # else its client, which has a cache, would retry for 50 seconds
    try:
        net = _create(source.weights, image_size, pretrained=True)
    except Exception as error:  # the hub's client, what it connects with, and timm raise errors without a common class
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise DownloadError(
            f"the pretrained weights {source.weights} cannot be downloaded "
            f"({f'{constants.ENDPOINT} does not answer' if out_of_reach else reason}). "
            "Without a network, get their file elsewhere and give weights=FILE."
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = offline
    if source.weights == source.network:
        return net
    plain = _create(source.network, image_size)
    copy_state(net.state_dict(), plain, source.weights)
    return plain


def _answers(url: str) -> bool:
    """Whether a server answers within `HUB_SECONDS`, with whichever status."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            urlopen(Request(url, method="HEAD"), timeout=HUB_SECONDS).close()
        except HTTPError:
            pass
        except (OSError, HTTPException):
            return
        answers.append(True)

    thread = Thread(target=ask, daemon=True)  # because the search for the address of a name has no time limit
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answers)


def image_input(net: nn.Module, image_size: tuple[int, int] | None) -> ImageInput:
    """The image preprocessing with which the weights were trained, according to timm."""
    config: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    interpolation: Any = config["interpolation"] if config["interpolation"] in get_args(Interpolation) else "bicubic"
    size = image_size or (int(config["input_size"][1]), int(config["input_size"][2]))
    resize = round(min(size) / float(config["crop_pct"]))
    return ImageInput(size, tuple(config["mean"]), tuple(config["std"]), interpolation, resize)
