"""Draw which package of suprank imports which: `python docs/import_graph.py` writes docs/pictures/imports.svg.

Imports inside functions count, those for type checkers do not. An arrow that follows from others (a → b → c implies a → c) is
left out.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 120, 44, 60, 46, 16
SHIFT = 66
SHIFTS = (SHIFT, -SHIFT / 2, -SHIFT / 2, SHIFT, SHIFT, 0, SHIFT / 2, SHIFT)  # of rows, so that few arrows go behind a box


def package_imports(source: Path) -> dict[str, set[str]]:
    """The packages of suprank that each of them imports."""
    packages = sorted(init.parent.name for init in source.glob("*/__init__.py"))
    imports: dict[str, set[str]] = {package: set() for package in packages}
    for package in packages:
        for file in (source / package).rglob("*.py"):
            for node in run_time_nodes(ast.parse(file.read_text(encoding="utf-8"))):
                for name in imported_modules(node):
                    part = name.split(".")[1] if name.startswith("suprank.") else ""
                    if part in imports and part != package:
                        imports[package].add(part)
    return imports


def run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes that are not under `if TYPE_CHECKING:`."""
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        skipped = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        waiting += node.orelse if isinstance(node, ast.If) and skipped else ast.iter_child_nodes(node)
    return nodes


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"suprank.{alias.name}" for alias in node.names] if node.module == "suprank" else [node.module or ""]
    return []


def reduced(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports without those that follow from others."""

    def reachable(package: str) -> set[str]:
        return set().union(*({one} | reachable(one) for one in imports[package])) if imports[package] else set()

    return {
        package: {one for one in direct if not any(one in reachable(other) for other in direct - {one})}
        for package, direct in imports.items()
    }


def layers(imports: dict[str, set[str]]) -> list[list[str]]:
    """Packages by height: those that import nothing first."""

    def height(package: str) -> int:
        return 1 + max(map(height, imports[package]), default=-1)

    rows: defaultdict[int, list[str]] = defaultdict(list)
    for package in imports:
        rows[height(package)].append(package)
    return [rows[number] for number in sorted(rows)]


def draw(source: Path) -> str:
    """The SVG, with the package that nobody imports on top."""
    imports = package_imports(source)
    rows = layers(imports)[::-1]
    widest = max(map(len, rows)) * (WIDTH + GAP_X) - GAP_X + 2 * SHIFT
    centers: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        start = MARGIN + (widest - len(row) * (WIDTH + GAP_X) + GAP_X) / 2 + SHIFTS[number % len(SHIFTS)]
        for place, package in enumerate(row):
            centers[package] = (start + place * (WIDTH + GAP_X) + WIDTH / 2, MARGIN + number * (HEIGHT + GAP_Y) + HEIGHT / 2)
    width, height = widest + 2 * MARGIN, len(rows) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
    ]
    for package, targets in reduced(imports).items():
        for target in sorted(targets):
            (x, y), (end_x, end_y) = centers[package], centers[target]
            y, end_y = y + HEIGHT / 2, end_y - HEIGHT / 2
            bend = (end_y - y) / 2
            lines.append(
                f'<path d="M{x:g} {y:g}C{x:g} {y + bend:g} {end_x:g} {end_y - bend:g} {end_x:g} {end_y - 1:g}" '
                f'fill="none" stroke="#667" marker-end="url(#tip)"/>'
            )
    for package, (x, y) in centers.items():
        files = len(list((source / package).rglob("*.py")))
        lines += [
            f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef2fb" '
            f'stroke="#46c"/>',
            f'<text x="{x:g}" y="{y - 3:g}" text-anchor="middle" font-weight="bold">{package}</text>',
            f'<text x="{x:g}" y="{y + 14:g}" text-anchor="middle" font-size="11" fill="#445">{files} files</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "suprank"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "pictures" / "imports.svg"
    target.write_text(draw(source), encoding="utf-8")
    print(target)
