"""The characters that `glyphs` draws, with their groups and scripts."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple


class Group(NamedTuple):
    """A group of characters: the code points of `ranges` whose Unicode category is one of `categories`."""

    script: str
    name: str
    ranges: str
    categories: str

    def characters(self) -> list[str]:
        """The assigned characters of the group, in code point order.

        Example:
            >>> "".join(Group("Greek", "Greek capitals", "0391-0399", "Lu").characters())
            'ΑΒΓΔΕΖΗΘΙ'
        """
        bounds = [[int(bound, 16) for bound in part.split("-")] for part in self.ranges.split()]
        characters = [chr(code) for bound in bounds for code in range(bound[0], bound[-1] + 1)]
        return [character for character in characters if unicodedata.category(character) in self.categories.split()]


GROUPS = (
    Group("Latin", "Latin capitals", "0041-005A", "Lu"),
    Group("Latin", "Latin small letters", "0061-007A", "Ll"),
    Group("Latin", "Latin accented capitals", "00C0-00DE", "Lu"),
    Group("Latin", "Latin accented small letters", "00DF-00FF", "Ll"),
    Group("Latin", "Phonetic letters", "0250-02AF", "Ll"),
    Group("Greek", "Greek capitals", "0391-03A9", "Lu"),
    Group("Greek", "Greek small letters", "03B1-03C9", "Ll"),
    Group("Greek", "Archaic Greek letters", "0370-0377 03CF-03FF", "Lu Ll"),
    Group("Cyrillic", "Cyrillic capitals", "0400-042F", "Lu"),
    Group("Cyrillic", "Cyrillic small letters", "0430-045F", "Ll"),
    Group("Armenian", "Armenian capitals", "0531-0556", "Lu"),
    Group("Armenian", "Armenian small letters", "0561-0587", "Ll"),
    Group("Georgian", "Asomtavruli capitals", "10A0-10C5", "Lu"),
    Group("Georgian", "Nuskhuri letters", "2D00-2D25", "Ll"),
    Group("Georgian", "Mkhedruli letters", "10D0-10FA", "Ll Lo"),
    Group("Hebrew", "Hebrew letters", "05D0-05EA", "Lo"),
    Group("Arabic", "Arabic letters", "0621-064A", "Lo"),
    Group("Arabic", "Persian, Urdu and other Arabic letters", "066E-06D5", "Lo"),
    Group("Lao", "Lao letters", "0E81-0EC4", "Lo"),
    Group("Lao", "Lao digits", "0ED0-0ED9", "Nd"),
    Group("Canadian syllabics", "Canadian vowels and finals", "1401-142E", "Lo"),
    Group("Canadian syllabics", "Canadian syllables in p, t and k", "142F-1488", "Lo"),
    Group("Canadian syllabics", "Canadian syllables in c, m and n", "1489-14CF", "Lo"),
    Group("Old Italic", "Old Italic letters", "10300-1031F", "Lo"),
    Group("Numbers", "Digits", "0030-0039", "Nd"),
    Group("Numbers", "Arabic-Indic digits", "0660-0669 06F0-06F9", "Nd"),
    Group("Numbers", "Fractions", "00BC-00BE 2150-215E", "No"),
    Group("Numbers", "Roman numerals", "2160-2188", "Nl Lu Ll"),
    Group("Mathematics", "Operators", "002B 00AC 00B1 00D7 00F7 2200-2233", "Sm"),
    Group("Mathematics", "Relations", "003C-003E 2234-2292", "Sm"),
    Group("Symbols", "Arrows", "2190-21FF", "Sm So"),
    Group("Symbols", "Currency signs", "0024 00A2-00A5 20A0-20BF", "Sc"),
    Group("Symbols", "Shapes and pictures", "25A0-26FF", "So Sm"),
    Group("Symbols", "Punctuation", "0021-002F 003A-0040 005B-0060 007B-007E 00A1-00BF 2010-205E", "Po Ps Pe Pi Pf Pd So Sk"),
)


def label(character: str) -> str:
    """The character's Unicode name, which is unique, in sentence case.

    Example:
        >>> [label(character) for character in "aΑж←"]
        ['Latin small letter a', 'Greek capital letter Alpha', 'Cyrillic small letter zhe', 'Leftwards arrow']
    """
    name = unicodedata.name(character).capitalize()
    return re.sub(r"capital letter \w", lambda found: found[0][:-1] + found[0][-1].upper(), name)


def characters() -> dict[str, Group]:
    """Every character and its group, in the order of `GROUPS`; a character in two groups belongs to the first."""
    found: dict[str, Group] = {}
    for group in GROUPS:
        for character in group.characters():
            found.setdefault(character, group)
    return found
