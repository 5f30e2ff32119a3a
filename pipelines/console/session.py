"""The sessions: a signed cookie, and for its forms a value that another site cannot know.

The key is made when the console starts, so a restart ends all sessions. Only sessions that were
ended before their time, and the results of forms, are kept in memory.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from typing import Final

SESSION_S: Final = 8 * 3_600  # a night shift
FORMS_MAX: Final = 10_000
_FORM_NUMBER: Final = 16  # hex digits


class Sessions:
    """The sessions of one console. It is thread-safe."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._ended: dict[str, int] = {}  # cookies, and when each would have expired

    def begin(self, actor: str) -> str:
        """Returns the cookie of a new session of an actor."""
        name = base64.urlsafe_b64encode(actor.encode()).decode()
        text = f"{name}.{int(time.time()) + SESSION_S}.{secrets.token_hex(8)}"
        return f"{text}.{self._sign('session', text)}"

    def actor(self, cookie: str | None) -> str | None:
        """Returns the actor of a session's cookie; None if invalid or expired."""
        text, _, signature = (cookie or "").rpartition(".")
        if not text or not _is_equal(signature, self._sign("session", text)):
            return None

        name, until, _ = text.split(".")
        if int(until) <= time.time() or text in self._ended:
            return None

        try:
            return base64.urlsafe_b64decode(name).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None

    def end(self, cookie: str) -> None:
        """Ends a session: all copies of its cookie become invalid."""
        text = cookie.rpartition(".")[0]
        now = time.time()

        with self._lock:
            self._ended = {ended: until for ended, until in self._ended.items() if until > now}
            self._ended[text] = int(text.split(".")[1])

    def form_value(self, cookie: str) -> str:
        """Returns the value that a form of a session must carry; each form has its own."""
        number = secrets.token_hex(_FORM_NUMBER // 2)
        return number + self._sign("form", f"{number} {cookie}")

    def has_form_token(self, cookie: str, form_value: str) -> bool:
        """Returns whether a form was made for this session."""
        number = form_value[:_FORM_NUMBER]
        signature = form_value[_FORM_NUMBER:]
        return _is_equal(signature, self._sign("form", f"{number} {cookie}"))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


class SentForms:
    """The results of forms, so that a form that is sent twice writes once. It is thread-safe.

    Only the newest `FORMS_MAX` are kept.
    """

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}
        self.writing = threading.Lock()  # held by a writer, so that the second of two waits

    def answer(self, form_value: str) -> str | None:
        """Returns the address to which this form led before; None if it has written nothing yet."""
        return self._answers.get(form_value)

    def keep(self, form_value: str, address: str) -> None:
        """Stores the address to which a form that has written leads."""
        self._answers[form_value] = address

        if len(self._answers) > FORMS_MAX:
            del self._answers[next(iter(self._answers))]


def is_token(text: str, token: str | None) -> bool:
    """Returns whether a text is the console's token."""
    return token is not None and _is_equal(text, token)


def _is_equal(text: str, other: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), other.encode())
