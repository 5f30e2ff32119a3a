"""The errors of an object store, or of its client, as one sentence."""

from __future__ import annotations

import re

from storage.errors import LakeError, StoreAwayError, StoreRefusedError
from storage.files.location import LakeLocation

# The words of delta-rs and of Arrow, whose errors are an OSError or a DeltaError with a long text.
_STORE_ERROR = re.compile(
    r"Generic (S3|MicrosoftAzure|GCS|HDFS)|AWS Error|performing (GET|PUT|HEAD|POST|DELETE|list)|"
    r"lacked the necessary privileges|not authorized|Unable to (parse|recognise) .*(url|URL)|"
    r"credential|IMDS|S3FileSystem"
)
_REFUSED = re.compile(
    r"40[13] [A-Z]\w+|ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY|"
    r"INVALID_CLIENT_TOKEN|privileges|not authenticated|not authorized|credential"
)
_NO_CREDENTIALS = re.compile(r"loading credentials|credential provider|IMDS")
_NO_BUCKET = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|NoSuchContainer")
_NO_TLS = re.compile(r"URL scheme is not allowed")
_GONE = re.compile(r"404 Not Found|RESOURCE_NOT_FOUND|NO_SUCH_KEY|NotFound|not found")
_CODE = re.compile(r"<Code>(\w+)</Code>|AWS Error ([A-Z_0-9]+)|(\d{3} [A-Z][a-z]+( [A-Z][a-z]+)*)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE = "↳"  # delta-rs writes each error's cause behind one, the innermost last
_MESSAGE_MAX = 160  # characters


def store_error(place: LakeLocation, error: BaseException) -> LakeError | None:
    """Returns the meaning of a store's error; None for other errors, and for a missing file.

    Output: StoreRefusedError if trying again does not help; StoreAwayError else.
    """
    if place.is_local or isinstance(error, LakeError):
        return None

    plain = _COLOURS.sub("", str(error))
    text = " ".join(plain.replace(_CAUSE, " ").split())
    if not _STORE_ERROR.search(text):
        return None

    if _NO_BUCKET.search(text):
        return StoreRefusedError(f"the lake {place.path}: its store has no such bucket: make it")
    if _NO_TLS.search(text):
        return StoreRefusedError(
            f'the lake {place.path}: its endpoint is http://: set allow_http = "true" in '
            "[lake.store] if that is meant, or name one with https://"
        )
    if _NO_CREDENTIALS.search(text):
        return StoreRefusedError(
            f"the lake {place.path}: no credentials for its store are found ({_summary(plain)}): "
            "name them in [lake.store] of --conf, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if _REFUSED.search(text):
        return StoreRefusedError(
            f"the lake {place.path}: its store refuses access ({_summary(plain)}): check the "
            "credentials of [lake.store], and what they may do with this bucket"
        )

    if isinstance(error, FileNotFoundError) or _GONE.search(text):
        return None
    return StoreAwayError(f"the store of the lake {place.path} does not answer ({_summary(plain)})")


def _summary(text: str) -> str:
    """Returns the code of a store's answer, or its first line without URLs, which hold secrets."""
    code = _CODE.search(text)
    if code:
        return str(next(filter(None, code.groups())))

    cause = re.sub(r"\S+://\S+", "", innermost(text))
    return cause.strip().partition("\n")[0][:_MESSAGE_MAX]


def innermost(text: str) -> str:
    """Returns the innermost cause of an error of delta-rs, without its colours."""
    return _COLOURS.sub("", text).rpartition(_CAUSE)[2].strip()
