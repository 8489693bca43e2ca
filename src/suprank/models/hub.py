"""The Hugging Face Hub: download and upload the files of a model, with errors that say what to do.

All requests go through `huggingface_hub`, so that its environment variables apply: HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE and the others.
"""

from __future__ import annotations

from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

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
CARD, GALLERY, REPORT = "README.md", "gallery.png", "report.json"
"""Files of a repository beside those of the embedder: the model card, its picture, and the metrics in full precision."""

"""Where huggingface_hub keeps what it needs to resume a download into a folder. In a home folder, the folder above this one is
the cache of all models, with the token of the user."""

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

    The name of the folder that the file is in is the commit.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    cache = None if cache_dir is None else str(cache_dir)
    if name.pinned and not force_download:  # a commit does not change, so that nobody needs to be asked
        cached = try_to_load_from_cache(name.repo_id, file, cache_dir=cache, revision=name.revision)
        if isinstance(cached, str):
            return Path(cached)
    with explain_errors(name), offline_if_out_of_reach(skip=local_files_only):
        try:
            return Path(
                hf_hub_download(
                    name.repo_id,
                    file,
                    revision=name.revision,
                    token=token,
                    cache_dir=cache,
                    local_files_only=local_files_only,
                    force_download=force_download,
                    library_name="suprank",
                    library_version=__version__,
                )
            )
        except EntryNotFoundError as error:
            if isinstance(error, LocalEntryNotFoundError):
                raise
            return None


def download_embedder(name: HubName, **options: Any) -> Path:
    """Download both files of an embedder into the cache; return their folder. `options` are those of `download_file`."""
    settings = download_file(name, SETTINGS, **options)
    if settings is None:
        raise _not_an_embedder(name)
    # The commit of the first file, so that the second one is of the same push.
    if download_file(HubName(name.repo_id, settings.parent.name), WEIGHTS, **options) is None:
        raise _incomplete(name)
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
    revision: str | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
) -> CommitInfo:
    """Upload the files of a folder as one commit, so that nobody sees half a model; the repository is created if need be.

    `revision` is a branch, which is created too. `private` is for a new repository: an existing one that is public is refused
    if it is true. A picture and a report of an earlier push are deleted if the folder has none.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    check_repo_id(repo_id)
    api = HfApi(token=token, library_name="suprank", library_version=__version__)
    with explain_errors(HubName(repo_id, revision), writing=True):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        info = api.model_info(repo_id, revision=revision)
        if private and not info.private:
            raise HubError(
                f"{repo_id} is there already and public, so private=True would not hide what is pushed; make it private on "
                f"{api.endpoint}/{repo_id}/settings first, or push to another name."
            )
        files = sorted(folder.iterdir())
        outdated = {sibling.rfilename for sibling in info.siblings or ()} & {GALLERY, REPORT} - {file.name for file in files}
        return api.create_commit(
            repo_id,
            [
                *(CommitOperationAdd(file.name, str(file)) for file in files),
                *(CommitOperationDelete(name) for name in sorted(outdated)),
            ],
            commit_message=commit_message or "Push an embedder with suprank",
            revision=revision,
            create_pr=create_pr,
        )


def _not_an_embedder(name: HubName) -> HubError:
    return HubError(
        f"{name} is not an embedder of suprank: it has no {SETTINGS}, which Embedder.push_to_hub writes; if it is a timm "
        f"model, name it {HUB}{name} as a backbone."
    )


def _incomplete(name: HubName) -> HubError:
    return HubError(f"{name} is incomplete: it has {SETTINGS} and no {WEIGHTS}; push the model again, or ask its owner to.")


@contextmanager
def explain_errors(name: HubName, *, writing: bool = False) -> Iterator[None]:
    """Turn errors of huggingface_hub, and of what it connects with, into one sentence with a way out."""
    try:
        yield
    except (HubError, DiskFullError):
        raise
    except Exception as error:  # the client, what it connects with, and the system raise errors without a common class
        raise _hub_error(error, name, writing) from error


def _hub_error(error: Exception, name: HubName, writing: bool) -> OSError:
    from huggingface_hub import constants, errors

    endpoint, where = constants.ENDPOINT, f"{constants.ENDPOINT}/{name.repo_id}"
    causes = [*_causes(error)]
    for one in causes:
        if isinstance(one, OSError) and one.errno in DISK_FULL:
            return DiskFullError(one.filename or constants.HF_HUB_CACHE, one)
    status = next((code for one in causes if (code := getattr(getattr(one, "response", None), "status_code", None))), None)
    if any(isinstance(one, errors.GatedRepoError) for one in causes):
        return HubError(f"{name.repo_id} is gated; accept its conditions on {where}, and log in with {_LOG_IN}.")
    if writing and (status in (401, 403) or any(isinstance(one, errors.LocalTokenNotFoundError) for one in causes)):
        return HubError(
            f"{name.repo_id} cannot be written to ({_first_line(error)}); log in with a token that has write access: {_LOG_IN}."
        )
    if any(isinstance(one, errors.RevisionNotFoundError) for one in causes):
        return HubError(f"{name.repo_id} has no revision {name.revision!r}; {_revisions(name)}.")
    if any(isinstance(one, errors.RepositoryNotFoundError) for one in causes):
        return HubError(
            f"there is no model {name.repo_id} on {endpoint}, or it is private; check the name, or log in to an account that "
            f"may read it: {_LOG_IN}."
        )
    if status in (401, 403):
        return HubError(f"{name.repo_id} cannot be read ({_first_line(error)}); log in with a token that may: {_LOG_IN}.")
    if status == 429:
        return HubError(
            f"{endpoint} refuses more requests for now (error 429); wait some minutes, or log in, which allows more."
        )
    if status is not None and status >= 500:
        return HubError(f"{endpoint} has a problem of its own (error {status}); try again later.")
    if not writing and any(isinstance(one, errors.LocalEntryNotFoundError) for one in causes):
        if constants.HF_HUB_OFFLINE:
            why = "HF_HUB_OFFLINE is set"
        elif any(isinstance(one, errors.OfflineModeIsEnabled) for one in causes):
            why = f"{endpoint} does not answer"
        else:
            why = _first_line(causes[-1]) if len(causes) > 1 else "local_files_only=True"
        return HubError(
            f"{name} cannot be downloaded ({why}), and the cache ({constants.HF_HUB_CACHE}) does not have it; connect to the "
            "Hub once, or copy the folder of the model from a machine that has it and name the folder."
        )
    doing = "uploaded" if writing else "downloaded"
    if constants.HF_HUB_OFFLINE:
        return HubError(f"{name} cannot be {doing}, because HF_HUB_OFFLINE is set; unset it.")
    if any(type(one).__name__ in ("ConnectError", "ConnectTimeout", "ConnectionError") for one in causes):  # httpx, requests
        return HubError(f"{name} cannot be {doing}: {endpoint} does not answer; check the network, or HF_ENDPOINT.")
    return HubError(f"{name} cannot be {doing} ({type(error).__name__}: {_first_line(error)}); try again.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _revisions(name: HubName) -> str:
    """The branches and tags of a repository, in a clause of an error."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(name.repo_id)
    except Exception:
        return "name a branch, a tag or a commit"
    known = [ref.name for ref in (*refs.branches, *refs.tags)]
    return f"choose from {', '.join(known)}, or name a commit"


@contextmanager
def offline_if_out_of_reach(*, skip: bool = False) -> Iterator[bool]:
    """Let huggingface_hub look into its cache at once if the Hub does not answer; on its own it would retry for 50 seconds.

    Yields whether the Hub was asked and did not answer.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    out_of_reach = not skip and not offline and not answers(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = offline or out_of_reach
    try:
        yield out_of_reach
    finally:
        constants.HF_HUB_OFFLINE = offline


def answers(url: str) -> bool:
    """Whether a server answers within `HUB_SECONDS`, with whichever status."""
    heard: list[bool] = []

    def ask() -> None:
        try:
            urlopen(Request(url, method="HEAD"), timeout=HUB_SECONDS).close()
        except HTTPError:
            pass
        except (OSError, HTTPException, ValueError):  # the last for an HF_ENDPOINT that is no address
            return
        heard.append(True)

    thread = Thread(target=ask, daemon=True)  # because the search for the address of a name has no time limit
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(heard)
