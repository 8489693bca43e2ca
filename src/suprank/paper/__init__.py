"""The paper's tables and figures, each by its label, as `suprank paper` lists and reproduces them.

`contents` has what the paper shows, `reproduce` trains what is missing and writes a table or figure into a folder.
"""

from suprank.paper.contents import Item, contents, find_item, paper_results

__all__ = ["Item", "contents", "find_item", "paper_results"]
