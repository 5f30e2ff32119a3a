"""S3 by single requests, which neither Arrow nor delta-rs offers: a conditional PUT, one GET."""

from __future__ import annotations

import functools
import os
from typing import Any, Final

from obstore.store import S3Store

from storage.files.location import LakeLocation, is_s3, s3_access

# With any other option, encryption for example, delta-rs does it: its effect here was not tried.
_OPTIONS: Final = frozenset(
    {
        "endpoint",
        "endpoint_url",
        "region",
        "default_region",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "token",
        "virtual_hosted_style_request",
        "allow_http",
    }
)
_KEY: Final = "AWS_ACCESS_KEY_ID"


def s3_client(location: LakeLocation) -> S3Store | None:
    """Returns a client whose paths begin at the lake; None if delta-rs has to do it.

    Roles and profiles are left to delta-rs: they need a key, as an option or in the environment.
    """
    names = {key.lower().removeprefix("aws_") for key in location.options}
    has_key = "access_key_id" in names or _KEY in os.environ

    if not is_s3(location) or not has_key or not names <= _OPTIONS:
        return None
    return _open(location.path, tuple(sorted(location.options.items())))


@functools.lru_cache(maxsize=8)
def _open(path: str, options: tuple[tuple[str, str], ...]) -> S3Store:
    access = s3_access(LakeLocation(path, dict(options)))
    config = {
        "endpoint": access.endpoint,
        "region": access.region,
        "access_key_id": access.access_key_id,
        "secret_access_key": access.secret_access_key,
        "session_token": access.session_token,
        "virtual_hosted_style_request": "true" if access.is_virtual_hosted else None,
    }
    known: Any = {key: value for key, value in config.items() if value is not None}

    is_http = (access.endpoint or "").startswith("http://")
    bucket, _, prefix = path.partition("://")[2].partition("/")

    return S3Store(bucket, prefix=prefix, config=known, client_options={"allow_http": is_http})
