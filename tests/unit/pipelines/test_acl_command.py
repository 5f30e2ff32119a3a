"""`txlake acl print`: what each role may do, as commands, and as policies of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipelines.cli.main import main
from pipelines.kafka_client.acls import ROLES, table_rows

ROOT = Path(__file__).parents[3]
SECURITY = (ROOT / "docs" / "SECURITY.md").read_text("utf-8")


def printed(folder: Path, *options: str, lake: str = "/the/lake") -> Result:
    conf = folder / "job.toml"
    conf.write_text(f'[lake]\npath = "{lake}"\n[kafka]\nbootstrap_servers = "k:1"\n')
    return CliRunner().invoke(main, ["acl", "print", "--conf", str(conf), *options])


def test_rights_are_printed_as_commands_of_kafka(tmp_path: Path) -> None:
    words = ("--role", "job", "--role", "consumer", "--principal", "job=User:CN=the job")
    lines = printed(tmp_path, *words).output.splitlines()
    begin = "kafka-acls.sh --bootstrap-server k:1 --command-config admin.properties --add "
    begin += "--allow-principal 'User:CN=the job' "
    assert lines[0] == (
        f"{begin}--operation READ --operation DESCRIBE_CONFIGS --operation CREATE "
        "--topic RMQ_SYS_TRANS_HALF_TOPIC"
    )
    assert lines[4] == (
        f"{begin}--operation WRITE --topic TRANS_CHECK_ --resource-pattern-type prefixed"
    )
    assert lines[5].startswith(f"{begin}--operation READ --group txlake-driver-")
    assert lines[6:] == ["# consumer: it reads the lake alone, and needs no right in Kafka"]


def test_each_producer_group_has_rights_of_its_own(tmp_path: Path) -> None:
    rows = json.loads(
        printed(
            tmp_path,
            "--role",
            "producer",
            "--group",
            "shop",
            "--group",
            "bank",
            "--principal",
            "bank=User:b",
            "-o",
            "json",
        ).output
    )
    checks = {
        (row["principal"], row["kind"], row["name"]) for row in rows if "CHECK" in row["name"]
    }
    assert checks == {
        ("User:shop", "topic", "TRANS_CHECK_shop"),
        ("User:shop", "group", "TRANS_CHECK_shop"),
        ("User:b", "topic", "TRANS_CHECK_bank"),
        ("User:b", "group", "TRANS_CHECK_bank"),
    }
    nobody = printed(tmp_path, "--role", "producer").output
    assert nobody == "# producer: name each producer group: --group NAME\n"


def test_a_producer_groups_quota_is_a_command_of_kafka(tmp_path: Path) -> None:
    words = (
        "--role",
        "producer",
        "--group",
        "shop",
        "--group",
        "bank",
        "--principal",
        "bank=User:CN=b",
        "--producer-bytes",
        "500000",
    )
    lines = printed(tmp_path, *words).output.splitlines()
    begin = "kafka-configs.sh --bootstrap-server k:1 --command-config admin.properties --alter "
    begin += "--add-config producer_byte_rate=500000 --entity-type users --entity-name "
    assert lines[-2:] == [f"{begin}CN=b", f"{begin}shop"]
    assert sum(line.startswith("kafka-configs.sh") for line in lines) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--producer-bytes", "9", "-o", "json", "--group", "a"), "without --store and -o"),
        (("--producer-bytes", "9"), "name them, --group NAME"),
        (("--producer-bytes", "9", "--group", "a", "--role", "job"), "name them, --group NAME"),
        (("--producer-bytes", "0"), "0 is not in the range"),
        (("--role", "king"), "--role king: the roles are producer, job, operator, consumer"),
        (("--group", "a b"), "--group 'a b': a group's name is"),
        (("--principal", "job"), "--principal job: ROLE=User:NAME"),
        (("--principal", "king=User:x"), "--principal king=User:x: ROLE=User:NAME"),
        (("--store",), "the lake /the/lake is not in S3"),
    ],
)
def test_what_cannot_be_printed_is_said(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    result = printed(tmp_path, *options)
    assert result.exit_code != 0
    assert said in result.output


def test_a_store_lets_consumers_see_what_was_delivered_alone(tmp_path: Path) -> None:
    policies = json.loads(printed(tmp_path, "--store", lake="s3://b/a/lake").output)
    assert list(policies) == list(ROLES)

    def objects(role: str, action: str) -> set[str]:
        return {
            resource.removeprefix("arn:aws:s3:::b/a/lake/")
            for statement in policies[role]["Statement"]
            if action in statement["Action"]
            for resource in statement["Resource"]
        }

    assert objects("producer", "s3:GetObject") == set()
    own = {
        "consumer_offsets/*",
        "consumer_members/*",
        "consumer_retries/*",
        "consumer_dead_letters/*",
    }
    for role in ("consumer", "operator"):  # who sets a group's offsets, resumes or drops
        assert objects(role, "s3:PutObject") == own
    assert objects("consumer", "s3:GetObject") == {
        *own,
        "lake/*",
        "epochs/*",
        "catalog/*",
        "topics/*",
    }
    assert objects("operator", "s3:GetObject") == {"*", *own}
    for role in ("job", "metrics"):
        assert objects(role, "s3:GetObject") == {"*"}
        assert objects(role, "s3:PutObject") == ({"*"} if role == "job" else set())
    (listing, _) = policies["job"]["Statement"]
    assert listing["Resource"] == ["arn:aws:s3:::b"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["a/lake/*"]}}


def test_the_documents_table_of_rights_is_the_codes() -> None:
    lines = ["| role | resource | operations | what for |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row.values())} |" for row in table_rows()]
    assert "\n".join(lines) in SECURITY, "\n".join(lines)
