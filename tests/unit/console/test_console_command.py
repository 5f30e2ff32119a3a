"""`txlake console` itself: what it refuses, in one sentence, and that it serves and ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.support.asked_console import TOKEN
from tests.support.operator import said, write_conf
from tests.support.paper_job import PaperJob

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
    lake = PaperJob(tmp_path / "lake").lake.path
    nowhere = said("console", "--lake", lake, "--host", "no.such.invalid", code=1)
    assert "there is no such address" in nowhere
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        text = said("console", "--lake", lake, "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1 port {port} (Address already in use)" in text
    assert text.count("\n") == 1


def test_it_serves_until_sigterm_and_its_token_is_in_no_command_line(tmp_path: Path) -> None:
    lake = PaperJob(tmp_path / "lake").lake.path
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
                assert answer.status == 200 and b"nothing is wrong" in answer.read()
            assert TOKEN not in " ".join(psutil.Process(running.pid).cmdline())
            running.send_signal(signal.SIGTERM)
            assert running.wait(120) == 0
            assert running.stdout.read() == "stopped\n"
        finally:
            running.kill()
