"""The sources of `suprank data import`, with the keys of each. It needs the extra `vision`, and is imported when it is used."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_origin

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suprank.cli import terminal
from suprank.data.importers import BENCHMARKS, CSV, FOLDER, HF, Importer, ImportResult, import_hf
from suprank.data.importers.base import describe_manifests
from suprank.data.manifest import Manifest
from suprank.files.atomic import write_atomically


class Keys(BaseModel):
    """What is particular to a source, as KEY=VALUE; the names are those of its Python function."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FolderKeys(Keys):
    """Keys for folders of images."""

    split: str = Field("train", description="split of all images, unless folders are named after splits")


class TableKeys(Keys):
    """Keys for a table of images."""

    table: Path | None = Field(None, description="the table: .csv, .tsv or .parquet; by default manifest.csv in ROOT")
    path: str = Field("path", description="column of the paths, relative to ROOT")
    split: str = Field("split", description="column of the splits")
    constant_split: str | None = Field(None, description="a split for all images, instead of a column")
    id: str | None = Field(None, description="column of image ids; rows with equal ids are one image")
    box: list[str] = Field([], description="column of crop boxes 'x1 y1 x2 y2'; or four times, for x1, y1, x2 and y2")
    fill_gaps: bool = Field(False, description="put a placeholder where a row has a blank between two labels")
    label_separator: str | None = Field(None, description="what stands between the labels of an image, as | in dog|person")


class HubKeys(Keys):
    """Keys for a Hugging Face dataset."""

    image: str | None = Field(None, description="image column; by default the only one")
    id: str | None = Field(None, description="column of image ids; rows with equal ids are one image")
    split: list[str] = Field([], description="SPLIT or SPLIT=NAME, its name in the manifest; repeatable")
    config: str | None = Field(None, description="configuration of the dataset")
    revision: str | None = Field(None, description="branch, tag or commit of the Hub; by default main")
    label_separator: str | None = Field(None, description="what stands between the labels of an image, as | in dog|person")


class EmojiKeys(Keys):
    """Keys for drawn emoji."""

    size: int = Field(64, ge=16, description="side of the images in pixels")


class GlyphKeys(EmojiKeys):
    """Keys for drawn characters."""

    font: list[Path] = Field([], description="additional font file to draw with; repeatable")
    installed_fonts: bool = Field(False, description="draw with all fonts of this system too")


class TaskKeys(Keys):
    """Keys for a task of mteb."""

    data: Path | None = Field(None, description="downloaded repository of the dataset; by default the cache, or a download")
    split: str | None = Field(None, description="split of the task; by default the first that mteb evaluates")
    subset: str | None = Field(None, description="subset of the task, if it has several")


@dataclass(frozen=True)
class ImportRequest:
    """What a source is asked for. `split` makes the new split of a manifest, where the source takes --holdout-classes."""

    place: str
    keys: Any
    out: Path
    levels: list[str] | None
    split: Callable[[Manifest], Manifest] | None
    seed: int
    quiet: bool
    bars: terminal.ProgressBars

    def save(self, imported: ImportResult) -> None:
        """Write the manifests, and print what is in them and how to have test images."""
        for sentence in imported.sentences:
            terminal.echo(sentence)
        for file, manifest in imported.files(self.out).items():
            manifest.save(file)
            terminal.echo(f"{file}: {len(manifest):,} images")
        only_train = all([*manifest.splits] == ["train"] for manifest in imported.manifests.values())
        if only_train and self.split is not None:
            terminal.echo(
                "All images are for training, so `suprank train` has nothing to evaluate on. To hold out classes for testing, "
                "import again with --holdout-classes 0.5.",
                err=True,
            )


@dataclass(frozen=True)
class ImportSource:
    """A source: what it is and expects, what its place is called ("" if it draws), its keys and options."""

    title: str
    layout: str
    place: str
    keys: type[Keys]
    options: tuple[str, ...]
    run: Callable[[ImportRequest], None]


def find_source(name: str) -> ImportSource:
    """The source of that name."""
    if name not in SOURCES:
        close = difflib.get_close_matches(name, SOURCES, n=1)
        hint = f"did you mean {close[0]}?" if close else "`suprank data import` lists them."
        raise typer.BadParameter(f"there is no source {name!r}; {hint}", param_hint="SOURCE")
    return SOURCES[name]


def describe(name: str) -> str:
    """How the command is written for a source, what it expects, and its keys with their defaults."""
    source = SOURCES[name]
    words = [name, *([source.place] if source.place else []), *(["[KEY=VALUE ...]"] if source.keys.model_fields else [])]
    lines = [f"{source.title}.", "", f"  suprank data import {' '.join(words)} --out OUT"]
    if source.layout:
        lines += ["", f"{source.place}:", source.layout]
    if source.keys.model_fields:
        lines += ["", "Keys:"]
    for key, field in source.keys.model_fields.items():
        default = "" if field.default in (None, []) else str(field.default).lower()
        lines.append(f"  {f'{key}={default}':18}  {field.description}")
    if source.options:
        lines += ["", f"Options: {', '.join(source.options)}"]
    return "\n".join(lines)


def parse_keys(model: type[Keys], words: list[str], source: str) -> Keys:
    """The keys of a source from KEY=VALUE; a key that holds a list may be repeated."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        field = model.model_fields.get(key)
        if not equals or field is None:
            wrong = f"{source} has no key {key!r}" if equals else f"{word!r} is not KEY=VALUE"
            close = difflib.get_close_matches(key, model.model_fields, n=1)
            hint = f"did you mean {close[0]}?" if close else f"its keys: {', '.join(model.model_fields) or 'none'}."
            raise ValueError(f"{wrong}; {hint}")
        if get_origin(field.annotation) is list:
            values.setdefault(key, []).append(value)
        elif key in values:
            raise ValueError(f"{key} is given twice, as {values[key]} and as {value}; give one.")
        else:
            values[key] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{first['loc'][0]}: {first['input']!r} {first['msg'].removeprefix('Input ')}.") from None


def splitter(share: float | None, shared: str | None, seed: int) -> Callable[[Manifest], Manifest]:
    """A function that makes the new split of a manifest; without --holdout-classes it changes nothing."""
    from suprank.data.splits import holdout_classes

    if share is None and (shared is not None or seed):
        raise typer.BadParameter("--shared and --seed need a random split; add --holdout-classes 0.5.")
    if share is None:
        return lambda manifest: manifest
    if not 0 < share < 1:
        text = f"{share:g} must lie between 0 and 1, because train and test both need classes; try 0.5."
        raise typer.BadParameter(text, param_hint="--holdout-classes")
    return lambda manifest: holdout_classes(manifest, share, seed=seed, shared=shared)


def _import(importer: Importer, request: ImportRequest) -> None:
    """Import a folder tree, a table, or a public dataset."""
    _check_out(request.out)
    root, read = Path(request.place), importer.read
    settings: dict[str, Any] = request.keys.model_dump()
    if importer is CSV:
        if root.suffix.lower() in (".csv", ".tsv", ".parquet") and root.is_file():
            raise typer.BadParameter(f"{root} is a table; give the folder of the images, and table={root}.", param_hint="ROOT")
        corners = settings["box"]
        settings["box"] = corners[0] if len(corners) == 1 else corners or None
    if request.split is not None:
        settings["levels"] = request.levels

    def read_and_split(root: Path) -> dict[str, Manifest]:
        found = read(root, **settings)
        return {suffix: manifest if request.split is None else request.split(manifest) for suffix, manifest in found.items()}

    request.save(replace(importer, read=read_and_split)(root))


def _import_hf(request: ImportRequest) -> None:
    _check_out(request.out)
    if request.quiet:
        _hide_bars()
    settings = request.keys.model_dump()
    settings["splits"] = settings.pop("split") or None
    imported = import_hf(
        request.place,
        **settings,
        levels=request.levels,
        resplit=request.split,
        announce=terminal.echo,
        progress=request.bars,
    )
    request.save(imported)


def _hide_bars() -> None:
    """Those of the libraries of Hugging Face, in this process."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()


def _draw_glyphs(request: ImportRequest) -> None:
    from suprank.data.importers import glyphs

    keys = request.keys
    fonts = [*keys.font, *(glyphs.installed_fonts() if keys.installed_fonts else ())]
    _draw(partial(glyphs.read, fonts=fonts), request)


def _draw_emoji(request: ImportRequest) -> None:
    from suprank.data.importers.emoji import LICENSES, read

    manifest = _draw(read, request)
    beside = request.out.with_name(f"{request.out.stem}-{LICENSES}")
    write_atomically(beside, (manifest.root / LICENSES).read_bytes())
    terminal.echo(f"licenses of the drawings: {beside}")


def _draw(read: Callable[..., Manifest], request: ImportRequest) -> Manifest:
    """Draw a set, or take it from the cache, and save its manifest."""
    _check_out(request.out)
    manifest = read(size=request.keys.size, seed=request.seed, progress=partial(request.bars, "drawing"))
    request.bars.close()
    request.save(ImportResult({"": manifest}, tuple(describe_manifests({"": manifest}, {}))))
    terminal.echo(f"images: {manifest.root}")
    return manifest


def _import_task(request: ImportRequest) -> None:
    terminal.check_folder(request.out)
    from suprank.integrations.mteb import MANIFEST, QRELS, task_manifest

    progress = partial(request.bars, "images")
    manifest = task_manifest(request.place, request.out, **request.keys.model_dump(), progress=progress)
    terminal.echo(", ".join(f"{name}: {count:,} images" for name, count in manifest.splits.items()))
    terminal.echo(f"{request.out / MANIFEST}: {len(manifest):,} images")
    terminal.echo(f"judgments, for suprank evaluate --truth: {request.out / QRELS}")


def _check_out(out: Path) -> None:
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise typer.BadParameter(f"{out} must end in .parquet or .csv.", param_hint="--out")
    terminal.check_writable(out)


_SPLIT = ("--level", "--holdout-classes", "--shared", "--seed")
_GLYPHS = "characters, drawn with the fonts that come with matplotlib: three levels, no download, cached after a few seconds"
_EMOJI = "emoji by up to six artists, from openly licensed npm packages (100 MB); cached after about a minute"
SOURCES = {
    "folder": ImportSource(FOLDER.title, FOLDER.layout, "ROOT", FolderKeys, _SPLIT, partial(_import, FOLDER)),
    "csv": ImportSource(CSV.title, CSV.layout, "ROOT", TableKeys, _SPLIT, partial(_import, CSV)),
    "hf": ImportSource(HF.title, HF.layout, "NAME_OR_PATH", HubKeys, _SPLIT, _import_hf),
    "glyphs": ImportSource(_GLYPHS, "", "", GlyphKeys, ("--seed",), _draw_glyphs),
    "emoji": ImportSource(_EMOJI, "", "", EmojiKeys, ("--seed",), _draw_emoji),
    "mteb": ImportSource("an image retrieval task of mteb (MIEB); needs mteb", "", "TASK", TaskKeys, (), _import_task),
    **{
        name: ImportSource(importer.title, importer.layout, "ROOT", Keys, (), partial(_import, importer))
        for name, importer in BENCHMARKS.items()
    },
}
