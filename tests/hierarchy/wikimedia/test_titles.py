import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.hierarchy.wikimedia.titles import BATCH_BYTES, batches, title_of

SITE = "https://commons.wikimedia.org/w/api.php"


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("http://commons.wikimedia.org/wiki/Category:Happy_Valley_Racecourse", "Category:Happy Valley Racecourse"),
        ("https://commons.wikimedia.org/wiki/Category:Happy_Valley_Racecourse", "Category:Happy Valley Racecourse"),
        ("http://commons.wikimedia.org/wiki/Category:Sparkassen-Arena,_G%C3%B6ttingen", "Category:Sparkassen-Arena, Göttingen"),
        ("http://commons.wikimedia.org/wiki/Category:St._Mary's_(Hull)", "Category:St. Mary's (Hull)"),
        ("http://commons.wikimedia.org/wiki/Category:King%E2%80%99s_Gate", "Category:King’s Gate"),
        ("https://commons.m.wikimedia.org/wiki/Category:A?uselang=de#top", "Category:A"),
        ("http://commons.wikimedia.org/wiki/Category:What_is_this?", "Category:What is this?"),
        ("http://commons.wikimedia.org/wiki/Category:50%25_off", "Category:50% off"),
        ("//commons.wikimedia.org/wiki/Old_gallery", "Old gallery"),
        ("  Category:Bare_title ", "Category:Bare title"),
        ("category : two  blanks", "Category:two blanks"),
        ("http://commons.wikimedia.org/wiki/Category:Cafe%CC%81", "Category:Café"),  # composed, as wikis store it
    ],
)
def test_addresses_become_titles(source, title):
    assert title_of(source, SITE) == title


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "no address"),
        ("   ", "no address"),
        ("Paris", "neither an address nor Category"),
        ("Category:", "names no page"),
        ("https://commons.wikimedia.org/wiki/", "names no page"),
        ("https://en.wikipedia.org/wiki/Category:Paris", "a page of en.wikipedia.org, not of commons.wikimedia.org"),
        ("https://commons.wikimedia.org/w/index.php?title=Category:A", "is not /wiki/ and a title"),
        ("http://commons.wikimedia.org/wiki/Category:G%F6ttingen", "not UTF-8"),
        ("Category:Bad|title", r"has '\|' in it"),
        ("http://commons.wikimedia.org/wiki/Category:a%7Cb", r"has '\|' in it"),
        ("Category:line\nbreak", "in it, which no title may have"),
        ("http://commons.wikimedia.org/wiki/Category:a%2541", "has '%41' in it"),
        ("Category:" + "ö" * 128, "longer than the 255 bytes"),
    ],
)
def test_what_cannot_be_a_title_says_why(source, complaint):
    with pytest.raises(ValueError, match=complaint):
        title_of(source, SITE)


@given(st.lists(st.text(min_size=1, max_size=40), max_size=120), st.integers(1, 50))
def test_batches_keep_all_keys_in_order_and_stay_small(keys, size):
    from urllib.parse import urlencode

    found = list(batches(keys, size, 300))
    assert [key for batch in found for key in batch] == keys
    for batch in found:
        assert 1 <= len(batch) <= size
        assert len(batch) == 1 or len(urlencode({"titles": "|".join(batch)})) <= 300 + len("titles=")


def test_fifty_long_titles_in_another_script_are_several_batches():
    keys = [f"Category:{'東京都' * 20} {number}" for number in range(50)]
    assert len(list(batches(keys, 50))) == -(-50 // (BATCH_BYTES // (60 * 9 + 20)))
