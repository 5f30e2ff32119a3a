"""Who has logged in: a signed cookie, and for its forms a value that another site cannot know.

Nothing is kept: the key is made when the console starts, so all are logged out when it ends.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from typing import Final

SESSION_S: Final = 8 * 3_600  # a night's watch


class Sessions:
    """The sessions of one console."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def begin(self, actor: str) -> str:
        """Returns the cookie of a new session of an actor."""
        name = base64.urlsafe_b64encode(actor.encode()).decode()
        text = f"{name}.{int(time.time()) + SESSION_S}.{secrets.token_hex(8)}"
        return f"{text}.{self._sign('session', text)}"

    def actor(self, cookie: str | None) -> str | None:
        """Returns whose session a cookie is; None if it is none, or over."""
        text, _, signature = (cookie or "").rpartition(".")
        if not text or not _is_equal(signature, self._sign("session", text)):
            return None
        name, until, _ = text.split(".")
        if int(until) <= time.time():
            return None
        try:
            return base64.urlsafe_b64decode(name).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None

    def form_value(self, cookie: str) -> str:
        """Returns the value that each form of a session has to carry."""
        return self._sign("form", cookie)

    def is_of(self, cookie: str, form_value: str) -> bool:
        """Returns whether a form was made for this session."""
        return _is_equal(form_value, self.form_value(cookie))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


def is_token(given: str, token: str | None) -> bool:
    """Returns whether somebody has the console's token."""
    return token is not None and _is_equal(given, token)


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())
