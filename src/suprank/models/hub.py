"""The Hugging Face Hub: download and upload the files of a model with `huggingface_hub`, and errors that say what to do."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank import __version__
from suprank.files.atomic import DISK_FULL, DiskFullError
from suprank.models.hub_names import HubName, check_repo_id
from suprank.models.model_folder import SETTINGS, WEIGHTS
from suprank.system.custom_code import HUB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from huggingface_hub import CommitInfo

HUB_SECONDS = 5.0  # until the hub counts as out of reach
GALLERY, REPORT = "gallery.png", "report.json"
"""Files of a repository beside the embedder and its model card: the card's picture, and the metrics in full precision."""

_LOG_IN = "`hf auth login`, or HF_TOKEN"


class HubError(OSError):
    """The Hub cannot be reached, or does not give or take what was asked for; the message says why and what to do."""


def download_file(
    name: HubName,
    file: str,
    *,
    token: str | bool | None = None,
    cache_dir: str | PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> Path | None:
    """Download a file into the cache of huggingface_hub, unless it is there; None if the repository does not have it.

    The name of the folder that the file is in is the commit. If the Hub does not answer, the cache is used.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    unreachable: Exception | None = None
    with explain_errors(name):
        if not local_files_only and not name.pinned:
            try:  # one question, because `hf_hub_download` asks an unreachable Hub six times, for half a minute or more
                HfApi(token=token).model_info(name.repo_id, revision=name.revision, timeout=HUB_SECONDS)
            except Exception as error:  # those of the HTTP library below huggingface_hub have no class in common
                if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
                    raise
                unreachable = error
        try:
            return Path(
                hf_hub_download(
                    name.repo_id,
                    file,
                    revision=name.revision,
                    token=token,
                    cache_dir=None if cache_dir is None else str(cache_dir),
                    local_files_only=local_files_only or unreachable is not None,
                    force_download=force_download and unreachable is None,
                    library_name="suprank",
                    library_version=__version__,
                )
            )
        except LocalEntryNotFoundError as error:
            error.__cause__ = error.__cause__ or unreachable
            raise
        except EntryNotFoundError:
            return None


def download_embedder(name: HubName, **options: Any) -> Path:
    """Download the two files of an embedder, and no others, and return their folder; `options` are those of `download_file`."""
    settings = download_file(name, SETTINGS, **options)
    if settings is None:
        raise HubError(
            f"{name} is not an embedder of suprank: it has no {SETTINGS}, which Embedder.push_to_hub writes; if it is a timm "
            f"model, name it {HUB}{name} as a backbone."
        )
    # The commit of the first file, so that the second one is of the same push.
    if download_file(HubName(name.repo_id, settings.parent.name), WEIGHTS, **options) is None:
        raise HubError(f"{name} is incomplete: it has {SETTINGS} and no {WEIGHTS}; push the model again, or ask its owner to.")
    return settings.parent


def has_embedder(name: str) -> bool:
    """Whether `hf-hub:org/name` is an embedder of suprank. Without the Hub, whether the cache has one."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return download_file(HubName.parse(name), SETTINGS) is not None
    except HubError as error:
        if isinstance(error.__cause__, LocalEntryNotFoundError):  # it may be a timm model, which is cached by other files
            return False
        raise


def check_token(repo_id: str, token: str | bool | None = None) -> None:
    """Raise a `HubError` if nobody is logged in, or with a token that may only read, before hours of work depend on it."""
    from huggingface_hub import HfApi

    with explain_errors(HubName(repo_id), writing=True):
        account = HfApi(token=token).whoami()
    if ((account.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        raise HubError(
            f"{repo_id} cannot be written to: the token of {account['name']} may only read; log in with one that has write "
            f"access: {_LOG_IN}."
        )


def upload_folder(
    repo_id: str,
    folder: Path,
    *,
    private: bool | None = None,
    branch: str | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
) -> CommitInfo:
    """Upload the files of a folder as one commit, so that nobody sees half a model.

    Repository and branch are created if need be. `private` is for a new repository: if it is true, one that is there already
    and public is refused. The picture and the report of an earlier push are deleted if the folder has none.
    """
    from huggingface_hub import HfApi

    check_repo_id(repo_id)
    api = HfApi(token=token, library_name="suprank", library_version=__version__)
    with explain_errors(HubName(repo_id, branch), writing=True):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise HubError(
                f"{repo_id} is there already and public, so private=True would not hide what is pushed; make it private on "
                f"{api.endpoint}/{repo_id}/settings first, or push to another name."
            )
        if branch is not None and not create_pr:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=branch,
            commit_message=commit_message or "Push an embedder with suprank",
            create_pr=create_pr,
            delete_patterns=[GALLERY, REPORT],
        )


@contextmanager
def explain_errors(name: HubName, *, writing: bool = False) -> Iterator[None]:
    """Turn errors of huggingface_hub, and of what it connects with, into one sentence with a way out."""
    from huggingface_hub import constants

    try:
        yield
    except (HubError, DiskFullError):
        raise
    except Exception as error:  # the client, what it connects with, and the system raise errors without a common class
        causes = [*_causes(error)]
        for one in causes:
            if isinstance(one, OSError) and one.errno in DISK_FULL:
                raise DiskFullError(one.filename or constants.HF_HUB_CACHE, one) from error
        raise HubError(_explanation(causes, name, writing)) from error


def _explanation(causes: list[BaseException], name: HubName, writing: bool) -> str:
    from huggingface_hub import constants, errors

    def has(kind: type[Exception]) -> bool:
        return any(isinstance(one, kind) for one in causes)

    endpoint, first = constants.ENDPOINT, _first_line(causes[0])
    where, doing = f"{endpoint}/{name.repo_id}", "uploaded" if writing else "downloaded"
    status = next((code for one in causes if (code := getattr(getattr(one, "response", None), "status_code", None))), 0)
    if has(errors.GatedRepoError):
        return f"{name.repo_id} is gated; accept its conditions on {where}, and log in with {_LOG_IN}."
    if writing and (status in (401, 403) or has(errors.LocalTokenNotFoundError)):
        return f"{name.repo_id} cannot be written to ({first}); log in with a token that has write access: {_LOG_IN}."
    if has(errors.RevisionNotFoundError):
        return f"{name.repo_id} has no revision {name.revision!r}; name a commit, or a branch or tag that {where} lists."
    if has(errors.RepositoryNotFoundError):
        return (
            f"there is no model {name.repo_id} on {endpoint}, or it is private; check the name, or log in to an account that "
            f"may read it: {_LOG_IN}."
        )
    if status in (401, 403):
        return f"{name.repo_id} cannot be read ({first}); log in with a token that may: {_LOG_IN}."
    if status == 429:
        return f"{endpoint} refuses more requests for now (error 429); wait some minutes, or log in, which allows more."
    if status >= 500:
        return f"{endpoint} has a problem of its own (error {status}); try again later."
    if has(errors.LocalEntryNotFoundError):
        why = f"{endpoint} does not answer ({_first_line(causes[-1])})" if len(causes) > 1 else "local_files_only=True"
        return (
            f"{name} cannot be downloaded: {'HF_HUB_OFFLINE is set' if constants.HF_HUB_OFFLINE else why}, and the cache "
            f"({constants.HF_HUB_CACHE}) does not have it; connect to the Hub once, or copy the model from a machine that "
            "has it."
        )
    return f"{name} cannot be {doing} ({type(causes[0]).__name__}: {first}); check the network, or HF_ENDPOINT, and try again."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
