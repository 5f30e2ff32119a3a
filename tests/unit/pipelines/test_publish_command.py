"""`txlake publish`: what is wrong is said before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operator import said as output_of

JOB = '[lake]\npath = "nowhere"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("words", "publishers", "code", "said"),
    [
        ("publish", "", 2, "name the job's settings: --conf FILE"),
        ("publish --conf {conf} status", "", 2, "options stand behind the command"),
        ("publish --conf {conf}", "", 1, "the settings have no publisher: an empty section"),
        ("publish --conf {conf}", "[publish.a]\n[publish.b]\ndestination = 'b.{topic}'\n", 1,
         "2 publishers, a, b: say one"),
        ("publish --conf {conf} --name c", "[publish.a]\n", 1, "have no [publish.c]; the publishe"),
        ("publish --conf {conf}", "[publish.a]\n", 1, "there is no lake here; start the job first"),
        ("publish status --conf {conf}", "[publish.a]\n", 1, "there is no lake here"),
        ("publish adopt --conf {conf} --position earliest", "", 2, "Missing option '--reason'"),
        ("publish skip --conf {conf} --topic t --queue 0 --offset 1 --reason  ", "[publish.a]\n",
         2, "--reason"),
    ],
)  # fmt: skip
def test_wrong_usage_of_publish_is_one_sentence(
    tmp_path: Path, words: str, publishers: str, code: int, said: str
) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(JOB + publishers)
    output = output_of(*words.format(conf=conf).split(), code=code)
    assert said in output
    assert "Traceback" not in output


def test_the_variable_of_the_settings_stands_for_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(f"{JOB}[publish.a]\n")
    monkeypatch.setenv("TXLAKE_CONF", str(conf))
    for words in ("publish", "publish status"):
        assert "there is no lake here" in output_of(*words.split(), code=1)

    monkeypatch.setenv("TXLAKE_CONF", str(tmp_path / "gone.toml"))
    assert "there is no lake here" in output_of("publish", "--conf", str(conf), code=1)
