"""`txlake console` itself: what it refuses, in one sentence, and that it serves and ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from pipelines.console import serve
from pipelines.console.context import ConsoleContext
from tests.support.console_client import TOKEN
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said, write_conf
from tests.support.wait import wait_until

VARIABLE = "TXLAKE_CONSOLE_TOKEN"


@pytest.mark.parametrize(
    ("words", "token", "sentence"),
    [
        (["--host", "0.0.0.0"], None, "--host 0.0.0.0 is not loopback, so it"),  # noqa: S104
        (["--host", "::"], None, "--host :: is not loopback, so it needs a token"),
        (["--allow-writes"], TOKEN, "--allow-writes needs --conf and a token"),
        (["--allow-writes", "--conf", "CONF"], None, "--allow-writes needs --conf and a token"),
        ([], "short", "the token of TXLAKE_CONSOLE_TOKEN has 5 characters, 20 are needed"),
        (["--token-file", "none"], None, "--token-file none cannot be read"),
        (["--port", "65536"], None, "65536 is not in the range"),
    ],
)
def test_wrong_usage_is_said_in_a_sentence(
    words: list[str],
    token: str | None,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if token is not None:
        monkeypatch.setenv(VARIABLE, token)
    conf = write_conf(tmp_path)
    words = [conf if word == "CONF" else word for word in words]
    assert sentence in said("console", "--lake", str(tmp_path / "lake"), *words, code=2)


def test_what_is_not_there_or_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert f"{missing} is not a lake" in said("console", "--lake", missing, code=1)
    lake = InMemoryJob(tmp_path / "lake").lake.path
    nowhere = said("console", "--lake", lake, "--host", "no.such.invalid", code=1)
    assert "there is no such address" in nowhere
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        text = said("console", "--lake", lake, "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1 port {port} (Address already in use)" in text
    assert text.count("\n") == 1


LIMITED = """
import resource, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))

from pipelines.cli.main import main
from pipelines.console import connections

connections.REQUEST_S = float(sys.argv[1])
main(sys.argv[2:])
"""


@contextmanager
def serving(
    lake: str, request_s: float, log: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a console that may open 300 files, and its port; it writes its errors to a file."""
    command = [
        sys.executable, "-c", LIMITED, str(request_s),
        "console", "--lake", lake, "--port", "0", *words,
    ]  # fmt: skip
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            yield running, int(running.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        finally:
            running.kill()


def front_page(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as answer:
        return bytes(answer.read())


def answers(port: int) -> bool:
    """Return whether the front page comes; False if the connection is closed."""
    with suppress(OSError):
        return b"no known problems" in front_page(port)
    return False


def test_half_open_requests_take_neither_its_files_nor_its_log(tmp_path: Path) -> None:
    lake, log = InMemoryJob(tmp_path / "lake").lake.path, tmp_path / "log"
    with serving(lake, 600, log) as (running, port), ExitStack() as stack:
        sockets = []
        for _ in range(400):
            connection = socket.create_connection(("127.0.0.1", port), 120)
            sockets.append(stack.enter_context(connection))
            with suppress(OSError):  # it is closed already
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127")

        for connection in sockets[300:]:  # beyond the limit: closed, not kept waiting
            connection.settimeout(120)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert psutil.Process(running.pid).num_fds() < 300

        for connection in sockets:
            connection.close()
        # It sees one after the other that they are gone, and has no place for others until then.
        wait_until(lambda: answers(port), "an answer when they are gone")
    assert log.read_text() == ""


def test_a_request_that_comes_too_slowly_is_closed(tmp_path: Path) -> None:
    lake, log = InMemoryJob(tmp_path / "lake").lake.path, tmp_path / "log"
    with serving(lake, 1, log) as (_, port):
        for start in (b"GET / HTTP/1.1\r\n", b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:1\r\n"
                      b"Content-Length: 9\r\n\r\nactor"):  # fmt: skip
            with socket.create_connection(("127.0.0.1", port), 120) as connection:
                connection.sendall(start)
                with suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        # This process, too, can be too slow for it.
        wait_until(lambda: answers(port), "an answer to a request that comes soon enough")
    assert log.read_text() == ""


def test_a_token_file_that_everybody_may_read_is_mentioned(tmp_path: Path) -> None:
    lake, log, secret = (
        InMemoryJob(tmp_path / "lake").lake.path,
        tmp_path / "log",
        tmp_path / "token",
    )
    secret.write_text(TOKEN)
    key, conf = tmp_path / "key", Path(write_conf(tmp_path))
    key.write_text("s3cret")
    conf.write_text(f'{conf.read_text()}\n[kafka.client]\n"sasl.password_file" = "{key}"\n')
    said_of = [
        f"{name}: every user of this machine may read {file} (mode 644): chmod 600"
        for name, file in (("--token-file", secret), ("[kafka.client] sasl.password_file", key))
    ]

    for mode, times in ((0o644, 1), (0o600, 0)):
        secret.chmod(mode)
        key.chmod(mode)
        with serving(lake, 10, log, "--token-file", str(secret), "--conf", str(conf)):
            pass
        assert [log.read_text().count(sentence) for sentence in said_of] == [times] * 2


def test_it_serves_until_sigterm_and_its_token_is_in_no_command_line(tmp_path: Path) -> None:
    lake = InMemoryJob(tmp_path / "lake").lake.path
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "pipelines", "console", "--lake", lake, "--port", "0",
               "--token-file", str(secret)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=120) as answer:  # noqa: S310
                assert answer.status == 200 and b"no known problems" in answer.read()
            assert TOKEN not in " ".join(psutil.Process(running.pid).cmdline())
            running.send_signal(signal.SIGTERM)
            assert running.wait(120) == 0
            assert running.stdout.read() == "stopped\n"
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("words", "shows_bodies"),
    [
        ((), True),
        (("--no-bodies",), False),
        (("--host", "0.0.0.0"), False),  # noqa: S104
        (("--host", "0.0.0.0", "--bodies"), True),  # noqa: S104
    ],
)
def test_bodies_are_shown_on_loopback_only_unless_they_are_asked_for(
    words: tuple[str, ...], shows_bodies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    served: list[ConsoleContext] = []
    monkeypatch.setattr(serve, "serve", lambda site, *_: served.append(site))
    lake = InMemoryJob(tmp_path / "lake").lake.path
    said("console", "--lake", lake, "--port", "0", *words)
    assert [site.shows_bodies for site in served] == [shows_bodies]
