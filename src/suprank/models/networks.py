"""timm's networks by name, with suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from suprank.models import hub
from suprank.models.config import HubBackbone, ImageInput, Interpolation
from suprank.models.hub_names import HubName
from suprank.models.model_folder import SETTINGS
from suprank.models.weights import DownloadError, WeightsError, copy_state, load_weights
from suprank.system import torchvision_operators
from suprank.system.custom_code import HUB

torchvision_operators.declare()  # timm imports torchvision

import timm  # noqa: E402
from timm.layers.patch_embed import PatchEmbed as PatchEmbed  # noqa: E402 (`as`: passed on to backbone.py)

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from torch import nn


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

TIMM_CONFIG, TIMM_WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
"""Files of a timm model on the Hub."""

_NOT_SAVED = {"url", "file", "state_dict", "source", "hf_hub_id", "labels", "label_names", "label_descriptions"}


def create_network(
    name: str,
    image_size: tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    weights: str | PathLike[str] | None = None,
    hub_backbone: HubBackbone | None = None,
) -> nn.Module:
    """The network of an alias or a timm name, without classifier, with random weights, timm's, or a file's.

    `hub_backbone` is what `resolve_hub_backbone` returned for a name `hf-hub:...`. With it nothing but pretrained weights is
    downloaded.
    """
    if pretrained and weights is not None:
        raise ValueError(f"pretrained=True and weights={str(weights)!r} both name weights; give one of them.")
    if hub_backbone is not None:
        return _create_hub_backbone(name, hub_backbone, image_size, pretrained=pretrained, weights=weights)
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


def weights_repo_id(name: str) -> str | None:
    """The repository on the Hub that has timm's pretrained weights of a backbone; None if they are elsewhere."""
    if name.startswith(HUB):
        return HubName.parse(name).repo_id
    settings = timm.get_pretrained_cfg(find_network(name).weights)
    return None if settings is None else settings.hf_hub_id


def _create(name: str, image_size: tuple[int, int] | None, *, hub: HubBackbone | None = None, **own: Any) -> nn.Module:
    """The network without classifier, for `image_size` and for changing sizes if it depends on them."""
    options: dict[str, Any] = {"dynamic_img_size": True, "img_size": image_size}
    if hub is not None:
        own = {**hub.model_args, "pretrained_cfg": dict(hub.pretrained_cfg)}
        options = {key: value for key, value in options.items() if value is not None or key not in own}
    while True:
        try:
            return timm.create_model(name, num_classes=0, **{**own, **options})
        except TypeError as error:  # convolutional networks have neither option
            unknown = next((option for option in options if f"'{option}'" in str(error)), None)
            if unknown is None:
                raise
            del options[unknown]


def _create_pretrained(source: NetworkSource, image_size: tuple[int, int] | None) -> nn.Module:
    settings, overlay = timm.get_pretrained_cfg(source.weights), {}
    try:
        if settings is not None and settings.hf_hub_id:  # else timm downloads from another address
            # timm's own download would try for half a minute to reach a Hub that does not answer.
            file = _hub_weights(HubName.parse(settings.hf_hub_id), settings.to_dict())
            overlay = {"file": str(file), "custom_load": False}  # with timm's names of tensors, also where timm has other files
        net = _create(source.weights, image_size, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception as error:  # what timm connects with raises errors without a common class
        reason = str(error) if isinstance(error, hub.HubError) else f"{type(error).__name__}: {error}".splitlines()[0]
        raise DownloadError(
            f"the pretrained weights {source.weights} cannot be loaded: {reason.rstrip('.')}. Without a network, get their "
            "file elsewhere and give weights=FILE."
        ) from error
    if source.weights == source.network:
        return net
    plain = _create(source.network, image_size)
    copy_state(net.state_dict(), plain, source.weights)
    return plain


# timm models on the Hub


def resolve_hub_backbone(name: str) -> tuple[str, HubBackbone]:
    """Look up `hf-hub:org/name@revision`: the same name with the commit that it means now, and its `config.json`."""
    wanted = HubName.parse(name)
    file = hub.download_file(wanted, TIMM_CONFIG)
    if file is None:
        if hub.download_file(wanted, SETTINGS) is not None:
            raise ValueError(
                f"{name} is an embedder of suprank, not a timm backbone; load it with "
                f"Embedder.from_pretrained({wanted.repo_id!r}), or name it where a model is asked for."
            )
        raise ValueError(f"{name} is not a timm model: it has no {TIMM_CONFIG}; timm.list_models() has timm's own names.")
    pinned = HubName(wanted.repo_id, file.parent.name)
    try:
        settings, architecture, arguments = _read_timm_config(file)
        backbone = HubBackbone(architecture=architecture, model_args=arguments, pretrained_cfg=settings)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"no entry {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise ValueError(
            f"{name} is not a timm model: its {TIMM_CONFIG} does not describe one ({reason}); name a repository whose "
            "library is timm."
        ) from error
    if not timm.is_model(architecture):
        raise ValueError(
            f"{name} is a {architecture}, which timm {timm.__version__} does not have; a newer timm may: "
            "`pip install --upgrade timm`"
        )
    return f"{HUB}{pinned}", backbone


def _read_timm_config(file: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """timm's settings of the weights, the architecture, and its arguments, as `timm.create_model` reads them."""
    entries = json.loads(file.read_bytes())
    if not isinstance(entries, dict):
        raise ValueError("it is not a JSON object")
    settings = entries.get("pretrained_cfg")
    if settings is None:  # as older versions of timm wrote it, in one table
        settings = {key: value for key, value in entries.items() if key not in ("architecture", "num_features")}
    settings = {key: value for key, value in settings.items() if key not in _NOT_SAVED}
    if "num_classes" in entries:
        settings["num_classes"] = entries["num_classes"]
    arguments = {key: value for key, value in (entries.get("model_args") or {}).items() if key != "num_classes"}
    return settings, entries["architecture"], arguments


def _create_hub_backbone(
    name: str,
    backbone: HubBackbone,
    image_size: tuple[int, int] | None,
    *,
    pretrained: bool,
    weights: str | PathLike[str] | None,
) -> nn.Module:
    """timm's own loading is not used: it leaves weights that a file lacks as random numbers, without a word."""
    try:
        net = _create(backbone.architecture, image_size, hub=backbone)
    except Exception as error:  # a network may raise anything for arguments that are not its own
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"timm {timm.__version__} does not build {name}, a {backbone.architecture} ({reason}); try the version of timm "
            "that wrote it."
        ) from error
    if pretrained:
        weights = _hub_weights(HubName.parse(name), backbone.pretrained_cfg)
    if weights is not None:
        load_weights(net, weights)
    return net


def _hub_weights(name: HubName, settings: dict[str, Any]) -> Path:
    """Download the weights of a timm model on the Hub: safetensors if it has them."""
    for file in dict.fromkeys((settings.get("hf_hub_filename") or TIMM_WEIGHTS[0], *TIMM_WEIGHTS)):
        if (downloaded := hub.download_file(name, file)) is not None:
            return downloaded
    raise WeightsError(f"{HUB}{name} has no weights, neither {' nor '.join(TIMM_WEIGHTS)}; name another repository.")


def image_input(net: nn.Module, image_size: tuple[int, int] | None) -> ImageInput:
    """The image preprocessing with which the weights were trained, according to timm."""
    config: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    interpolation: Any = config["interpolation"] if config["interpolation"] in get_args(Interpolation) else "bicubic"
    size = image_size or (int(config["input_size"][1]), int(config["input_size"][2]))
    resize = round(min(size) / float(config["crop_pct"]))
    return ImageInput(size, tuple(config["mean"]), tuple(config["std"]), interpolation, resize)
