"""What went wrong with a download, in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from specx.errors import ModelError, SpecxError
from specx.library.hub import HubFile, HubFolder, hub_utils

__all__ = ["told"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def told(place: HubFile | HubFolder) -> Iterator[None]:
    """Turn whatever is raised about a download into one line."""
    hub_utils().logging.set_verbosity_error()  # it tells of each attempt
    try:
        yield
    except SpecxError:
        raise
    except Exception as error:  # of the HTTP client, of the hub, of the file system
        raise ModelError(_refusal(place, error) or _failure(place, error)) from error


def _refusal(place: HubFile | HubFolder, error: Exception) -> str | None:
    """What to say if the hub does not give the file; None for any other error."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"the hub gives {place} only to those who accepted its terms; accept them on the page "
            f"of {place.repo}, then: hf auth login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"repository {place.repo} has no revision {place.revision}; check the name"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return (
            f"{place}: the repository has no such file at revision {place.revision}; check the "
            "name on its page"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or (
        isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403)
    ):
        return (
            f"the hub has no repository {place.repo}, or it is private; check the name, or: hf "
            "auth login"
        )
    return None


def _failure(place: HubFile | HubFolder, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in FULL:
        reason = "the disk is full; free some room"
    else:
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        reason = f"{first!a:.200}; check the network"
    return (
        f"{place} is not downloaded: {reason}, then pull it again, which goes on from where it "
        "stopped"
    )
