"""`suprank hierarchy review`: serve the page on which annotators refine the clusters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet
from suprank.cli.serving import serve

if TYPE_CHECKING:
    from suprank.hierarchy.project import Project


def review(
    project: ProjectFolder,
    annotator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Annotator, repeatable; each has a branch.", show_default="all there are"),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Start from this annotator's branch, to adjudicate.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --from: mark the labels that this annotator placed differently.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Manifest with sample images; it is remembered.")
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Level of the manifest with names of items or labels.", show_default="the finest")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the images.", show_default="the manifest's")
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option(metavar="TEXT|FILE", help="What annotators are asked to do; it is remembered.", show_default="two lines"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; with 127.0.0.1 only this machine can connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve the review page, on which annotators turn clusters into named groups: split, merge, move, exclude, mark done.

    Each annotator works on their own branch, which starts from the newest clusters, and opens it by the link that is printed.
    The link stays the same from one start to the next. Every click is saved at once. Ctrl-C stops the server.

    With --from and --against, the branch starts from one annotator's, with what another placed differently marked as doubtful
    and its groups open again: to decide, move a label, or mark its group done.

    \b
    suprank hierarchy review landmarks --annotator anna --annotator ben
    suprank hierarchy review landmarks --annotator final --from anna --against ben
    suprank hierarchy review landmarks --manifest gldv2.parquet --level landmark
    suprank hierarchy review landmarks --instructions "Group landmarks by what a visitor sees, not by their history."
    """
    if manifest is None and (level is not None or root is not None):
        raise typer.BadParameter("--level and --root belong to --manifest; give that, too.")
    if (source is not None or against is not None) and (None in (source, against) or len(annotator or ()) != 1):
        raise typer.BadParameter(
            "--from and --against start one branch; give both, and its name as --annotator, such as final."
        )
    with plain_errors():
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.review import open_branch
        from suprank.hierarchy.review.instructions import write_instructions
        from suprank.hierarchy.review.web import create_app
        from suprank.web.serving import bind_socket

        opened = Project(project)
        names = list(dict.fromkeys(annotator or _existing_branches(opened)))
        with bind_socket(host, port) as listening:  # first, so that a port in use is reported before a branch is started
            if manifest is not None:
                _remember_manifest(opened, manifest, level, root)
            if instructions is not None:
                write_instructions(opened, _text_or_file(instructions))
            branches = [open_branch(opened, name, source=source, against=against) for name in names]
            app = create_app(opened, names, host=host)
            if not quiet:
                for branch in branches:
                    terminal.echo(f"{branch.name}: {_progress(opened, branch.id)}")
            if app.state.review.no_images_reason:
                terminal.echo(f"there are no sample pictures: {app.state.review.no_images_reason}", err=True)
            links = [(one.name if len(names) > 1 else "", f"/{one.name}/enter?token={one.token}") for one in branches]
            serve(
                app,
                listening,
                host,
                links,
                others="and has a link can change its branch",
                open_page=not no_browser and len(names) == 1,
                # In the background, so that the first page of a group is as quick as the next.
                background=partial(app.state.review.suggestions.preload, branches),
            )


def _text_or_file(text: str) -> str:
    """The text, or the contents of the file it names: one line that ends in .txt or .md."""
    if not text.endswith((".txt", ".md")) or "\n" in text:
        return text
    if not Path(text).is_file():
        raise FileNotFoundError(f"there is no file {text} (the working folder is {Path.cwd()}); check --instructions.")
    return Path(text).read_text(encoding="utf-8")


def _existing_branches(project: Project) -> list[str]:
    with project.snapshot() as db:
        names = [row[0] for row in db.execute("SELECT name FROM branch ORDER BY id")]
    if not names:
        raise ValueError(f"nobody reviews {project.folder} yet; give --annotator NAME, once for each annotator.")
    return names


def _remember_manifest(project: Project, manifest: Path, level: str | None, root: Path | None) -> None:
    from suprank.hierarchy.sources import manifest_level

    meta = {"manifest": str(manifest.resolve()), "manifest_level": manifest_level(manifest, level)}
    if root is not None:
        meta["manifest_root"] = str(root.resolve())
    with project.transaction() as db:
        db.execute("DELETE FROM meta WHERE key = 'manifest_root'")
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())


def _progress(project: Project, branch: int) -> str:
    with project.snapshot() as db:
        query = "SELECT count(*), coalesce(sum(state = 'done'), 0) FROM \"group\" WHERE branch = ? AND level = 1"
        groups, done = db.execute(query, (branch,)).fetchone()
    return f"{done:,} of {groups:,} groups are done"
