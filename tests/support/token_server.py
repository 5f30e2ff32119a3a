"""A real server of tokens (OIDC): gives them for a client's secret, and shows its public keys."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from pipelines.local_server.server import HOST

CLIENT_ID, CLIENT_SECRET = "alice", "the secret of alice's client"
_KEY_ID = "tests"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class TokenServer:
    """The server's addresses, and how many tokens it gave."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        handler = type("Handler", (_Handler,), {"tokens": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self.given = 0

    @property
    def url(self) -> str:
        """Returns where it gives tokens; its keys are at `keys_url`."""
        return f"http://{HOST}:{self._server.server_port}/token"

    @property
    def keys_url(self) -> str:
        """Returns where its public keys are."""
        return f"http://{HOST}:{self._server.server_port}/keys"

    def client(self, secret: str = CLIENT_SECRET) -> dict[str, str]:
        """Returns the part of [kafka.client] that names this server."""
        return {
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": self.url,
        }

    def is_client(self, authorization: str) -> bool:
        """Returns whether a header of HTTP has the client's secret."""
        wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        return authorization == f"Basic {wanted}"

    def token(self) -> str:
        """Returns a new token, good for an hour."""
        self.given += 1
        now = int(time.time())
        claims = {"sub": CLIENT_ID, "aud": "kafka", "iat": now - 5, "exp": now + 3_600}
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        parts = [_text(json.dumps(part).encode()) for part in (head, claims)]
        signed = ".".join(parts)
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_text(signature)}"

    def keys(self) -> dict[str, Any]:
        """Returns the public keys, as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID}
        return {"keys": [{**key, "n": _number(numbers.n), "e": _number(numbers.e)}]}

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    @contextmanager
    def running(self) -> Iterator[TokenServer]:
        """Serves until the end of the block."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    tokens: TokenServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.tokens.is_client(self.headers.get("Authorization", "")):
            return self._answer(401, {"error": "invalid_client"})
        token = {"access_token": self.tokens.token(), "token_type": "Bearer", "expires_in": 3_600}
        return self._answer(200, token)

    def do_GET(self) -> None:
        self._answer(200, self.tokens.keys())

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
