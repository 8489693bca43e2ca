"""Draw all letters that the fonts of this system have, Han and Hangul too: the images of benchmarks/decomposability.py.

    python benchmarks/every_letter.py many --characters 12000 --drawings 12 --size 32     # many/manifest.parquet

With 273 fonts of Debian's packages (fonts-noto-cjk, fonts-nanum, fonts-unfonts-core, fonts-horai-umefont, fonts-lxgw-wenkai and
others) these are 141,071 drawings of 11,958 characters, in 125 CPU-seconds. Another machine has other fonts, and draws others.

The letters that four fonts or more have are drawn besides the characters of `suprank data import glyphs`.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from suprank.data.importers import glyphs
from suprank.data.importers.alphabets import GROUPS, Group, characters, label
from suprank.data.importers.typefaces import Face, Shape, can_draw, distinct_shapes, load_face, shapes_of, unique_names

_LETTERS = ("Lu", "Ll", "Lo")
_HAN_NAME = "Cjk unified ideograph-"
_HAN, _HANGUL = range(0x4E00, 0x9FA6), range(0xAC00, 0xD7A4)  # of Han, the part that is ordered by radical
_RADICALS = range(0x2F00, 0x2FD6)
_SYLLABLES_OF_A_CONSONANT = 588  # 21 vowels × 28 endings


def characters_and_letters(more: Iterable[str]) -> dict[str, Group]:
    """`characters()`, and then the letters of `more`, in code point order.

    The groups of Han characters are their radicals, those of Hangul syllables their first consonants; elsewhere a group is the
    first two words of the characters' names, and a script the first, or that of `GROUPS` with which the names begin.

    Example:
        >>> found = characters_and_letters("水각የ!")
        >>> [(found[one].script, found[one].name) for one in "水각የ"]
        [('Han', 'Radical 85 水'), ('Hangul', 'Hangul in kiyeok'), ('Ethiopic', 'Ethiopic syllable')]
    """
    found = characters()
    letters = {one for one in more if unicodedata.category(one) in _LETTERS and unicodedata.decomposition(one)[:1] != "<"}
    for letter in sorted(letters - found.keys()):
        if (group := _group_of_letter(letter)) is not None:
            found[letter] = group
    return found


def _group_of_letter(letter: str) -> Group | None:
    code = ord(letter)
    if code in _HAN:
        number = bisect_right(_first_of_radicals(), code)
        radical = unicodedata.normalize("NFKC", chr(_RADICALS[number - 1]))
        return Group("Han", f"Radical {number} {radical}", "", "")
    if code in _HANGUL:
        consonant = unicodedata.name(chr(0x1100 + (code - _HANGUL.start) // _SYLLABLES_OF_A_CONSONANT))
        return Group("Hangul", f"Hangul in {consonant.split()[-1].lower()}", "", "")
    words = unicodedata.name(letter, "").split()
    if len(words) < 3 or words[0] == "CJK":  # later blocks of Han are in no order of radicals
        return None
    group = " ".join(words[:2]).capitalize()
    known = (one.script for one in GROUPS if f"{group} ".startswith(f"{one.script.capitalize()} "))
    return Group(next(known, words[0].capitalize()), group, "", "")


@cache
def _first_of_radicals() -> list[int]:
    """The code points at which the characters of the 214 radicals begin: those of the radicals themselves."""
    return [ord(unicodedata.normalize("NFKC", chr(code))) for code in _RADICALS]


def without_placeholders(shapes: dict[str, list[Shape]], fewest: int) -> dict[str, list[Shape]]:
    """The characters and shapes without those that a face draws for three characters or more: a box, or an empty frame.

    Large fonts list characters that nobody has drawn yet. Characters that are left with fewer than `fewest` shapes are dropped.
    """
    drawn = Counter((shape.face, shape.size, shape.pixels) for several in shapes.values() for shape in several)
    kept = {
        character: [shape for shape in several if drawn[shape.face, shape.size, shape.pixels] < 3]
        for character, several in shapes.items()
    }
    return {character: several for character, several in kept.items() if len(several) >= fewest}


def letter_label(character: str) -> str:
    """The name of a character's class: its Unicode name, or the character for Han, whose names are numbers."""
    return f"Han {character}" if unicodedata.name(character).capitalize().startswith(_HAN_NAME) else label(character)


def sample(faces: Sequence[Face], most: int | None, seed: int) -> dict[str, Group]:
    """The characters of `GROUPS` and all letters that `MIN_FACES` have, in their order; at most `most` of them, at random."""
    count = Counter(character for face in faces for character in face.has)
    groups = characters_and_letters(character for character, faces_of in count.items() if faces_of >= glyphs.MIN_FACES)
    if most is None or len(groups) <= most:
        return groups
    chosen = np.random.default_rng(seed).choice(len(groups), most, replace=False)
    names = list(groups)
    return {names[place]: groups[names[place]] for place in sorted(chosen)}


def drawn(groups: Iterable[str], faces: Sequence[Face], most: int | None) -> Iterator[tuple[str, list[Shape]]]:
    """Each character with its shapes; at most `most`, from faces at random."""
    for character in groups:
        own = [face for face in faces if character in face.has]
        if most is not None:
            own = [own[place] for place in np.random.default_rng(ord(character)).permutation(len(own))]
        yield character, shapes_of(character, own)[:most]


def draw(folder: Path, fonts: Sequence[Path], *, characters: int | None, drawings: int | None, size: int, seed: int) -> None:
    """Draw into a folder, with a manifest."""
    faces = unique_names([load_face(path, glyphs.em(size)) for path in fonts])
    groups = sample(faces, characters, seed)
    shapes = distinct_shapes(drawn(groups, faces, drawings), glyphs.MIN_FACES)
    shapes = without_placeholders(shapes, glyphs.MIN_FACES)
    labels = {one: (letter_label(one), groups[one].name, groups[one].script) for one in shapes}
    folder.mkdir(parents=True, exist_ok=True)
    glyphs.write(folder, shapes, labels, size, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--characters", type=int, help="at most so many, chosen at random")
    parser.add_argument("--drawings", type=int, help="of a character, at most so many")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from matplotlib import font_manager

    fonts = [path for path in map(Path, sorted(font_manager.findSystemFonts())) if can_draw(path)]
    if not fonts:
        sys.exit("there are no fonts of outlines here; install some, such as fonts-noto-cjk.")
    limits = {"characters": options.characters, "drawings": options.drawings}
    draw(options.folder, fonts, **limits, size=options.size, seed=options.seed)


if __name__ == "__main__":
    main()
