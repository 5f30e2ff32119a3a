"""The errors of an object store, or of its client, as one sentence."""

from __future__ import annotations

from typing import Final

from storage.errors import LakeError, StoreAwayError, StoreRefusedError
from storage.files.location import LakeLocation
from txlake._store_error import StoreProblem, store_failure

_REFUSALS: Final = {
    StoreProblem.NO_BUCKET: "its store has no such bucket: make it",
    StoreProblem.NO_TLS: (
        'its endpoint is http://: set allow_http = "true" in [lake.store] if that is meant, or '
        "name one with https://"
    ),
    StoreProblem.NO_CREDENTIALS: (
        "no credentials for its store are found ({summary}): name them in [lake.store] of --conf, "
        "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    StoreProblem.REFUSED: (
        "its store refuses access ({summary}): check the credentials of [lake.store], and what "
        "they may do with this bucket"
    ),
}


def store_error(location: LakeLocation, error: BaseException) -> LakeError | None:
    """Returns the meaning of a store's error; None for other errors, and for a missing file.

    Output: StoreRefusedError if trying again does not help; StoreAwayError else.
    """
    if location.is_local or isinstance(error, LakeError):
        return None

    failure = store_failure(error)
    if failure is None:
        return None

    if failure.problem is StoreProblem.AWAY:
        return StoreAwayError(
            f"the store of the lake {location.path} does not answer ({failure.summary})"
        )

    refusal = _REFUSALS[failure.problem].format(summary=failure.summary)
    return StoreRefusedError(f"the lake {location.path}: {refusal}")
