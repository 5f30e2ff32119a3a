"""Wrong settings files: each ends `txlake run` with one sentence, before Java starts.

What Java alone can tell stands in tests/kafka/test_hostile_settings.py, what Kafka alone can tell
in test_connections.py and test_rights.py.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.settings import load

NUL, ESCAPE, LINE = "\\u0000", "\\u001b[2J", "\\n"
LAKE = '[lake]\npath = "{folder}/lake"\n'
KAFKA = '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
PLAIN = '"security.protocol" = "sasl_plaintext"\n"sasl.mechanisms" = "PLAIN"\n'


def lake(path: str) -> str:
    return f'[lake]\npath = "{path}"\n{KAFKA}'


def kafka(line: str) -> str:
    return f"{LAKE}{KAFKA}{line}\n"


def servers(text: str) -> str:
    return f'{LAKE}[kafka]\nbootstrap_servers = "{text}"\n'


def client(lines: str) -> str:
    return f"{LAKE}{KAFKA}[kafka.client]\n{lines}\n"


def store(lines: str, path: str = "s3://bucket/lake") -> str:
    return f'[lake]\npath = "{path}"\n[lake.store]\n{lines}\n{KAFKA}'


def section(name: str, line: str) -> str:
    return f"{LAKE}{KAFKA}[{name}]\n{line}\n"


def spark(key: str, value: str) -> str:
    return section("spark", f'"{key}" = {value}')


# What stands in the file | words of the sentence
WRONG: list[tuple[str, tuple[str, ...]]] = [
    # the file itself
    ("[lake", ("job.toml: not TOML",)),
    ("x = " + "[" * 100_000, ("job.toml: not TOML",)),
    (kafka(f"queues = {'9' * 5_000}"), ("job.toml: not TOML",)),
    (kafka(f"queues = 0x{'f' * 5_000}"), ("[kafka] queues is a whole number of more than",)),
    (section("metrics", f"port = [0x{'f' * 5_000}]"), ("[metrics] port is a whole number of",)),
    (
        section("publish.a.client", f'"linger.ms" = 0x{"f" * 5_000}'),
        ("[publish.a.client] linger.ms is a whole number of more",),
    ),
    (kafka("queues = 4\nqueues = 5"), ("job.toml: not TOML",)),
    ("", ("[lake] path is missing",)),
    (LAKE, ("[kafka] bootstrap_servers is missing",)),
    (f"lake = 3\n{KAFKA}", ("lake has a value: [lake] is a section",)),
    (section("lakes", "path = 3"), ("[lakes] is unknown", "lake, log")),
    (section(f'"lakes{LINE}"', "path = 3"), ("is unknown",)),
    (section("stream", f'"a{ESCAPE}" = 3'), ("a\\u001b[2J is unknown",)),
    # the lake
    (lake(""), ("[lake] path = ''", "not empty")),
    (lake(f"a{NUL}b"), ("[lake] path = 'a\\x00b'",)),
    (lake("ftp://host/lake"), ("ftp:// is not a store that is known",)),
    (lake("s3://bucket"), ("name a prefix in the bucket",)),
    (lake("s3://bucket/../x"), ("s3://BUCKET/PREFIX is allowed",)),
    (lake("{folder}/a%20b"), ("a%20b': it has '%20'", "name a folder without it")),
    (lake("{folder}/[x]"), ("it has '['",)),
    (lake("s3://bucket/a%20b"), ("'s3://bucket/a%20b': it has '%'",)),
    (lake("{folder}/file"), ("file is a file, not a folder",)),
    (lake("{folder}/file/lake"), ("file is a file, not a folder",)),
    (lake("s3:/b"), ("'s3:/b': a store is named as s3://BUCKET/PREFIX",)),
    (lake("file:/b"), ("'file:/b': a store is named",)),
    (lake("~/lake"), ("'~/lake': '~' is known to a shell alone",)),
    (lake(" "), ("' ': it begins or ends with a blank",)),
    (lake("{folder}/a "), ("a ': it begins or ends with a blank",)),
    (lake(f"a{LINE}b"), ("it has '\\n', which not every library",)),
    (lake("/proc/lake"), ("the lake /proc/lake cannot be made or written",)),
    (lake("/dev/null/lake"), ("/dev/null is a file, not a folder",)),
    (lake("{folder}/" + "n" * 300), ("the lake ", "File name too long")),
    (store('"secret_access_key" = "s3cret"'), ("use secret_access_key_env",)),
    (store('"aws_secret_access_key_env" = "NO_SUCH"'), ("no such environment variable",)),
    (store('"allow_unsafe_rename" = true'), ("allow_unsafe_rename is set by txlake",)),
    (store('"endpoint" = ["x"]'), ("[lake.store] endpoint: text without NUL",)),
    # where Kafka is, and the topics
    (servers(""), ("bootstrap_servers = ''", "host:port")),
    (servers("here"), ("'here': host:port",)),
    (servers("a:1,"), ("'a:1,': host:port",)),
    (servers("a:0"), ("'a:0': host:port",)),
    (servers("a:65536"), ("'a:65536': host:port",)),
    (servers("a:٩٠٩٢"), ("host:port",)),
    (servers("a b:9092"), ("'a b:9092': host:port",)),
    (servers("PLAINTEXT://a:9092"), ("'PLAINTEXT://a:9092': host:port",)),
    (kafka('half_topic = ".."'), ("'..': Kafka allows no topic",)),
    (kafka('half_topic = "a b"'), ("half_topic = 'a b': text like",)),
    (kafka(f'half_topic = "{"n" * 250}"'), ("half_topic = 'nnn", "text like")),
    (kafka('half_topic = "TRANS_CHECK_x"'), ("begins with check_topic_prefix",)),
    (kafka('op_topic = "RMQ_SYS_TRANS_HALF_TOPIC"'), ("names two topics",)),
    (kafka('check_topic_prefix = ""'), ("check_topic_prefix = '': text like",)),
    (kafka("queues = 0"), ("queues = 0: a whole number 1 .. 10000",)),
    (kafka('queues = "4"'), ("queues = '4': a whole number",)),
    (kafka("queues = 4.0"), ("queues = 4.0: a whole number",)),
    (kafka("queues = nan"), ("queues = nan: a whole number",)),
    (kafka("queues = 2026-11-25"), ("a whole number 1 .. 10000",)),
    # librdkafka and Java's client
    (client('"no.such" = "x"'), ("No such configuration property", "no.such")),
    (client('"security.protocol" = "tls"'), ("security.protocol", "tls")),
    (client('"socket.timeout.ms" = "soon"'), ("Invalid value", "socket.timeout.ms")),
    (client('"socket.timeout.ms" = -5'), ("socket.timeout.ms", "-5")),
    (client('"sasl.mechanisms" = "MAGIC"\n"security.protocol" = "sasl_ssl"'), ("MAGIC",)),
    (client('"message.timeout.ms" = 1'), ("message.timeout.ms = 1: at least 1000 ms",)),
    (client('"request.timeout.ms" = 999'), ("request.timeout.ms = 999: at least 1000",)),
    (
        client('"sasl.password_env" = "PATH"\n"sasl.password_file" = "{folder}/file"'),
        ("[kafka.client] sasl.password stands twice",),
    ),
    (
        store('secret_access_key_env = "PATH"\naws_secret_access_key_file = "{folder}/file"'),
        ("[lake.store] aws_secret_access_key stands twice",),
    ),
    (client('"sasl.password" = "s3cret"'), ("use sasl.password_env",)),
    (client('"sasl.password_file" = "{folder}/none"'), ("sasl.password_file: No such file",)),
    (client('"sasl.password_file" = "{folder}"'), ("Is a directory",)),
    (client(f'"sasl.password_file" = "a{NUL}"'), ("text without NUL",)),
    (client('"ssl.ca.location" = "{folder}/none.pem"'), ("none.pem': No such file",)),
    (client('"ssl.ca.location" = "{folder}/file"'), ("it has no certificate in PEM",)),
    (client('"ssl.keystore.location" = "{folder}/file"'), ("ssl.keystore.location = ",)),
    (client('"ssl.certificate.location" = "{folder}/none.crt"'), ("none.crt': No such file",)),
    (client('"enable.ssl.certificate.verification" = false'), ("Spark's client always verifies",)),
    (client('"acks" = "1"'), ("acks is set by txlake",)),
    (client('"group.id" = "mine"'), ("group.id is set by txlake",)),
    (client('"transactional.id" = "mine"'), ("transactional.id is set by txlake",)),
    (client('"fetch.max.bytes" = 1\n"message.max.bytes" = 2000'), ("fetch.max.bytes",)),
    (client('"sasl.username" = {{}}'), ("sasl.username: text without NUL",)),
    (client(f'{PLAIN}"sasl.oauthbearer.method" = "magic"'), ("sasl.oauthbearer.method", "magic")),
    # numbers and times
    (section("transaction", "check_max = 1001"), ("check_max = 1001: a whole number 0 .. 1000",)),
    (section("transaction", "check_max = true"), ("check_max = True: a whole number",)),
    (section("transaction", "check_interval_ms = 0"), ("check_interval_ms = 0: a whole number",)),
    (section("transaction", "half_retention_ms = 5"), ("half_retention_ms = 5 is below",)),
    (
        section("transaction", f"half_retention_ms = {2**63 - 1}"),
        ("half_retention_ms = 9223372036854775807: a whole number 1 .. 10^15",),
    ),
    (section("transaction", f"messages_max = {2**70}"), ("a whole number 1 .. 1000000",)),
    (section("transaction", 'late_end_policy = "x"'), ("'x': 'apply' or 'reject'",)),
    (section("topics", "retention_ms = 5"), ("[topics] retention_ms = 5 is below",)),
    (section("topics", "auto_create_topics = 1"), ("auto_create_topics = 1: true or false",)),
    (section("delay", 'levels = "1s 5x"'), ("'1s 5x': spans like",)),
    (section("delay", 'levels = ""'), ("levels = '': spans like",)),
    (section("delay", 'levels = "999999999d"'), ("'999999999d': spans like",)),
    (section("maintenance", "log_retention_ms = 59999"), ("log_retention_ms = 59999",)),
    (section("stream", 'deliveries = "here"'), ("'here': 'auto'",)),
    (section("stream", "trigger_interval_ms = -1"), ("trigger_interval_ms = -1",)),
    (section("log", 'level = "loud"'), ("'loud': 'debug'",)),
    (section("log", "format = 3"), ("format = 3: 'text' or 'json'",)),
    # where the checkpoint and the metrics are
    (section("stream", 'checkpoint = "{folder}/file"'), ("file': File exists; a folder",)),
    (section("stream", 'checkpoint = "{folder}/file/x"'), ("Not a directory; a folder",)),
    (section("stream", 'checkpoint = "/proc/x"'), ("checkpoint = '/proc/x': No such file",)),
    (section("stream", 'checkpoint = "~/checkpoint"'), ("'~/checkpoint': a folder without '~'",)),
    (section("stream", 'checkpoint = "s3:/b"'), ("'s3:/b': a folder without",)),
    (section("stream", f'checkpoint = "a{LINE}"'), ("'a\\n': a folder without",)),
    (section("stream", f'checkpoint = "a{NUL}"'), ("checkpoint = 'a\\x00': ",)),
    (section("metrics", "port = 65536"), ("port = 65536: a whole number 0 .. 65535",)),
    (section("metrics", "port = {taken}"), ("metrics cannot be served there (Address",)),
    (section("metrics", 'port = 1\nhost = "192.0.2.1"'), ("metrics cannot be served there",)),
    (section("metrics", f'port = 1\nhost = "{"a" * 70}.b"'), ("metrics cannot be served there",)),
    # keys
    (section("security", "colour = 3"), ("[security] colour is unknown",)),
    (section("security.keys.shop", ""), ("[security.keys.shop] is empty",)),
    (section("security.keys.shop", 'k1_env = "NO_SUCH"'), ("no such environment variable",)),
    (section("security.keys.shop", 'k1_file = "{folder}/file"'), ("at least 32 bytes",)),
    (section("security.keys.shop", 'k1 = "s3cret"'), ("does not stand in a settings file",)),
    # Spark, and its Java
    (section("spark", 'master = "local"'), ("settings that begin with spark.",)),
    (spark("spark.master", '"here"'), ("spark.master = 'here'", "local[2]")),
    (spark("spark.master", '"spark://nobody"'), ("'spark://nobody': ", "spark://host:7077")),
    (spark("spark.driver.memory", '"lots"'), ("spark.driver.memory = 'lots'", "'2g'")),
    (spark("spark.driver.memory", '"2gb"'), ("-Xmx2gb", "spark.driver.memory = '2gb'")),
    (spark("spark.driver.memory", '"1"'), ("spark.driver.memory = '1'",)),
    (spark("spark.driver.memory", '"99999999g"'), ("spark.driver.memory = '99999999g'",)),
    (spark("spark.driver.extraJavaOptions", '"-XX:NoSuch"'), ("NoSuch", "extraJavaOptions")),
    (spark("spark.driver.extraJavaOptions", "\"'\""), ("extraJavaOptions", "No closing quotation")),
    (spark("spark.executor.memory", "true"), ("spark.executor.memory = 'true'",)),
    (spark("spark.submit.deployMode", '"cluster"'), ("deployMode = 'cluster'", "'client'")),
    (spark("spark.local.dir", '"{folder}/file"'), ("spark.local.dir = ", "File exists")),
    (spark("spark.local.dir", '"~/x"'), ("spark.local.dir = '~/x'", "known to a shell alone")),
    (spark("spark.local.dir", '"/proc/x"'), ("spark.local.dir = '/proc/x'", "No such file")),
    (spark("spark.any", "[1]"), ("[spark] spark.any: text without NUL",)),
    (spark("spark.any", f'"a{NUL}"'), ("[spark] spark.any: text without NUL",)),
]  # fmt: skip


# What is on the machine, and no setting that cannot be used.
ONLY_A_START_SEES = ("metrics cannot be served there", "cannot be made or written")


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the signal handlers that a job takes."""
    taken = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(one) for one in taken]
    yield
    for one, handler in zip(taken, before, strict=True):
        signal.signal(one, handler)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, conf = tmp_path / "secret", tmp_path / "job.toml"
    secret.write_text("s3cret\r\n", "utf-8-sig")
    text = client(f'"sasl.username" = "ü"\n"sasl.password_file" = "{secret}"')
    conf.write_text(text.replace("{folder}", str(tmp_path)), "utf-8-sig")
    assert load(conf).kafka.client == {"sasl.username": "ü", "sasl.password": "s3cret"}


def test_a_secret_that_all_may_read_is_said_once_where_a_process_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipelines.job.driver.start_session", None)  # no Java starts
    secret, private, conf = tmp_path / "secret", tmp_path / "private", tmp_path / "job.toml"
    for file, mode in ((secret, 0o644), (private, 0o600)):
        file.write_text("s3cret")
        file.chmod(mode)
    names = f'"sasl.username_file" = "{private}"\n"sasl.password_file" = "{secret}"'

    def warnings() -> list[str]:
        return [message for message in caplog.messages if "every user" in message]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = client(names) + f"[metrics]\nport = {taken.getsockname()[1]}\n"
        conf.write_text(text.replace("{folder}", str(tmp_path)))
        for words in ("status", "topic list", "config show", "groups"):
            CliRunner().invoke(main, [*words.split(), "--conf", str(conf)])
        assert warnings() == []

        for words in ("run", "config validate", "run"):
            CliRunner().invoke(main, [*words.split(), "--conf", str(conf)])
            assert warnings() == [
                f"{conf}: [kafka.client] sasl.password_file: every user of this machine may read "
                f"{secret} (mode 644): chmod 600 it"
            ]


def test_there_are_as_many_wrong_files_as_were_once_tried() -> None:
    assert len({text for text, _ in WRONG}) >= 57


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[words[0][:60] for _, words in WRONG])
def test_a_wrong_settings_file_ends_the_start_with_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: None,
    text: str,
    words: tuple[str, ...],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("pipelines.job.driver.start_session", None)  # no Java starts
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = text.replace("{folder}", str(tmp_path))
        text = text.replace("{taken}", str(taken.getsockname()[1])).replace("{{}}", "{}")
        (tmp_path / "job.toml").write_text(text, "utf-8")
        conf = str(tmp_path / "job.toml")
        done = CliRunner().invoke(main, ["run", "--conf", conf])
        validated = CliRunner().invoke(main, ["config", "validate", "--conf", conf])
    if not any(said in done.output for said in ONLY_A_START_SEES):
        assert (validated.exit_code, validated.output) == (1, done.output)
    assert done.exit_code == 1, done
    assert isinstance(done.exception, SystemExit), done.exception
    said = done.output.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("Error: ")
    assert said[0].isprintable()
    assert [word for word in words if word not in said[0]] == [], said
    assert "s3cret" not in said[0]
