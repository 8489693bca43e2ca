"""timm's networks by name: the paper's under short aliases, and the nearest names for one that does not exist."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from suprank.models.config import Input, Interpolation
from suprank.models.weights import WeightsError, load_weights, put
from suprank.system import torchvision_operators

torchvision_operators.declare()  # timm imports torchvision

import timm  # noqa: E402
from timm.layers.patch_embed import PatchEmbed as PatchEmbed  # noqa: E402 (`as`: passed on to backbone.py)

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn


class Source(NamedTuple):
    """The timm network of an alias, and the timm weights that go into it."""

    network: str
    weights: str


ALIASES = {  # the paper's backbones, with the weights its authors start from
    "resnet18": Source("resnet18.tv_in1k", "resnet18.tv_in1k"),
    "resnet34": Source("resnet34.tv_in1k", "resnet34.tv_in1k"),
    "resnet50": Source("resnet50.tv_in1k", "resnet50.tv_in1k"),
    "resnet101": Source("resnet101.tv_in1k", "resnet101.tv_in1k"),
    "deit_small": Source("deit_small_patch16_224.fb_in1k", "deit_small_distilled_patch16_224.fb_in1k"),
    "deit_base": Source("deit_base_patch16_224.fb_in1k", "deit_base_distilled_patch16_224.fb_in1k"),
    "vit_base": Source("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
}


def network(
    name: str,
    image_size: tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    weights: str | PathLike[str] | None = None,
) -> nn.Module:
    """The network of an alias or a timm name, without classifier, with random weights, timm's, or a file's."""
    if pretrained and weights is not None:
        raise ValueError(f"pretrained=True and weights={str(weights)!r} both name weights; give one of them.")
    source = known(name)
    if pretrained:
        return _pretrained(source, image_size)
    net = _created(source.network, image_size)
    if weights is not None:
        load_weights(net, weights)
    return net


def known(name: str) -> Source:
    """The network and weights of an alias or a timm name; a ValueError with the nearest names for any other."""
    if name in ALIASES:
        return ALIASES[name]
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, {*ALIASES, *timm.list_models()}, n=5, cutoff=0.5)
        nearest = f"the nearest are {', '.join(near)}" if near else "timm.list_models() lists them"
        raise ValueError(f"backbone={name!r} is no network of timm {timm.__version__}; {nearest}.")
    tagged = timm.list_models(f"{architecture}.*", include_tags=True)
    if tag and name not in tagged:
        raise ValueError(
            f"backbone={name!r}: timm has no weights {tag!r} of {architecture}; it has {', '.join(tagged) or 'none'}."
        )
    return Source(name, name)


def names(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """The aliases and timm names that match a pattern such as "resnet*"; only those that timm has weights for, if asked."""
    return [
        *(alias for alias in ALIASES if fnmatchcase(alias, pattern)),
        *(name for name in timm.list_models(pattern, pretrained=pretrained, include_tags=False) if name not in ALIASES),
    ]


def _created(name: str, image_size: tuple[int, int] | None, *, pretrained: bool = False) -> nn.Module:
    """The network without classifier; for `image_size` and for changing sizes, where it cares about them at all."""
    options: dict[str, Any] = {"dynamic_img_size": True, "img_size": image_size}
    while True:
        try:
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except TypeError as error:  # networks of convolutions know neither option
            refused = next((option for option in options if f"'{option}'" in str(error)), None)
            if refused is None:
                raise
            del options[refused]


def _pretrained(source: Source, image_size: tuple[int, int] | None) -> nn.Module:
    try:
        net = _created(source.weights, image_size, pretrained=True)
    except Exception as error:  # of the hub's client, of whatever it uses to connect, or of timm: they share no class
        raise WeightsError(
            f"timm could not get the pretrained weights {source.weights} ({type(error).__name__}: {error}). Without a network, "
            "download them where there is one and give weights=FILE; HF_HUB_OFFLINE=1 in the environment skips the retries."
        ) from error
    if source.weights == source.network:
        return net
    plain = _created(source.network, image_size)
    put(net.state_dict(), plain, source.weights)
    return plain


def input_of(net: nn.Module, image_size: tuple[int, int] | None) -> Input:
    """What timm says of the images that the weights were trained with."""
    said: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    interpolation: Any = said["interpolation"] if said["interpolation"] in get_args(Interpolation) else "bicubic"
    size = image_size or (int(said["input_size"][1]), int(said["input_size"][2]))
    resize = round(min(size) / float(said["crop_pct"]))
    return Input(size, tuple(said["mean"]), tuple(said["std"]), interpolation, resize)
