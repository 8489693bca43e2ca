"""Why an item has no type: words for people, by the word that is kept."""

IN_WORDS = {
    "no_item": "category without a Wikidata item",
    "missing": "category that is not there",
    "invalid": "source that is no category",
    "redirect_loop": "too many redirects",
    "item_missing": "Wikidata item that is not there",
    "category_item_without_topic": "category item without a main topic",
    "topic_loop": "main topics in a circle",
    "no_type": "Wikidata item without a type",
    "failed": "the request failed",
    "not_asked": "not asked for yet",
    "not_listed": "not in the file",
    "empty": "no type in the file",
}


def in_words(reason: str) -> str:
    """A reason as people read it, with the word that files have for it; others are sentences already.

    Example:
        >>> in_words("no_item"), in_words("several types")
        ('category without a Wikidata item (no_item)', 'several types')
    """
    return f"{IN_WORDS[reason]} ({reason})" if reason in IN_WORDS else reason
