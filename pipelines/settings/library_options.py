"""Settings that are passed on to a library: [kafka.client], [lake.store] and [spark].

The library knows its keys, txlake does not. This module decides of each key whether it can be set,
whether its value is a secret, and whether its value can be shown.

    SettingsError    section and key, and what is allowed; never a value, which can be a secret
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.settings.errors import SettingsError, section_of
from pipelines.settings.secrets import secret, secret_name

# Of Kafka's clients: a broker on another machine takes some ms, a busy one some hundred.
KAFKA_MS_MIN: Final = dict.fromkeys(
    (
        "message.timeout.ms",
        "delivery.timeout.ms",
        "request.timeout.ms",
        "socket.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "session.timeout.ms",
        "default.api.timeout.ms",
    ),
    1_000,
)
HIDDEN: Final = "***"


@dataclass(frozen=True)
class Library:
    """The known facts of a library's settings. The patterns match keys in lower case.

    `secret`: values that may not stand in a settings file. `harmless`: values that are shown; any
    other is hidden, since the library can have settings that are not known here. `reserved`: keys
    that txlake sets, with the library's other names for them; `ms_min`: times below which no
    request could be answered.
    """

    secret: re.Pattern[str]
    harmless: re.Pattern[str]
    reserved: frozenset[str] = frozenset()
    prefix: str = ""  # a key is the same with and without it
    ms_min: Mapping[str, int] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """Returns the one name of a setting that has two."""
        return key.lower().removeprefix(self.prefix)

    def is_secret(self, key: str) -> bool:
        """Returns whether the value of a setting is a secret."""
        return bool(self.secret.search(key.lower()))

    def is_harmless(self, key: str) -> bool:
        """Returns whether the value of a setting can be shown."""
        return bool(self.harmless.fullmatch(key.lower())) and not self.is_secret(key)


# Of the Python client alone: functions and objects, which no settings file can hold. Kafka's Java
# client, which gets the same section, knows none of them.
_PYTHON_CLIENT: Final = frozenset(
    {
        "default.topic.config",
        "delivery.report.only.error",
        "error_cb",
        "logger",
        "oauth_cb",
        "on_commit",
        "on_delivery",
        "stats_cb",
        "throttle_cb",
    }
)
# Source: librdkafka's CONFIGURATION.md, and the settings of Kafka's Java client.
CLIENT: Final = Library(
    secret=re.compile(
        r"password|passphrase|secret|token(?!\.endpoint)|credential|jaas|oauthbearer\.config"
        r"|key\.pem|keystore\.key"
    ),
    harmless=re.compile(
        r"security\.protocol|sasl\.mechanisms?|sasl\.username|sasl\.kerberos\.service\.name"
        r"|sasl\.oauthbearer\.(method|client\.id|scope|token\.endpoint\.url)"
        r"|ssl\.[a-z.]+\.location|ssl\.(cipher\.suites|curves\.list|sigalgs\.list)"
        r"|ssl\.endpoint\.identification\.algorithm|enable\.ssl\.certificate\.verification"
        r"|broker\.(address|version)\.[a-z.]+|client\.(id|rack|dns\.lookup)"
        r"|(compression|partitioner)[a-z.]*|debug|log[._][a-z._]+"
        r"|[a-z.]+\.(ms|bytes|kbytes|max|min|messages|num\.messages|retries|size|count)"
    ),
    reserved=frozenset(
        {
            "bootstrap.servers",
            "metadata.broker.list",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "acks",
            "request.required.acks",
            "transactional.id",
            "group.id",
            "group.instance.id",
            "group.protocol",
            "partition.assignment.strategy",
            "enable.auto.commit",
            "auto.commit.enable",
            "enable.auto.offset.store",
            "auto.offset.reset",
            "isolation.level",
        }
    )
    | _PYTHON_CLIENT,
    ms_min=KAFKA_MS_MIN,
)
# Source: the configuration keys of the Rust crate object_store, to which delta-rs passes options.
# If one key of a log could have two writers, a table could have an epoch twice or not at all.
STORE: Final = Library(
    secret=re.compile(
        r"secret|password|token|credential|bearer|sas_key|account_key|access_key$|master_key"
        r"|storage_key|customer_key|private_key"
    ),
    harmless=re.compile(
        r"(aws_|azure_|google_|s3_)?(storage_)?"
        r"(access_key_id|region|default_region|endpoint|endpoint_url|bucket|bucket_name"
        r"|account_name|container_name|client_id|tenant_id|authority_host|authority_id"
        r"|allow_http|allow_invalid_certificates|virtual_hosted_style_request|request_payer"
        r"|skip_signature|unsigned_payload|use_emulator|imdsv1_fallback|s3_express"
        r"|checksum_algorithm|server_side_encryption|sse_kms_key_id|sse_bucket_key_enabled"
        r"|timeout|connect_timeout|pool_[a-z_]+|http[12]_[a-z_]+|max_retries|retry_timeout"
        r"|backoff_[a-z.]+|user_agent|proxy_url)"
    ),
    reserved=frozenset(
        {
            "allow_unsafe_rename",
            "aws_s3_allow_unsafe_rename",
            "mount_allow_unsafe_rename",
            "conditional_put",
            "aws_conditional_put",
            "copy_if_not_exists",
            "aws_copy_if_not_exists",
        }
    ),
    prefix="aws_",
)
# Source: Spark's configuration page. Settings for Hadoop, a connector or an executor's environment
# can have any name. Harmless ones stand in the JVM's command line: the only place from which
# spark-submit takes what it distributes itself (files, archives, jars, packages of Python).
SPARK: Final = Library(
    secret=re.compile(
        r"secret|password|passphrase|token|credential|jaas|access\.key$|account\.key|sas\.key"
        r"|encryption\.key$|private\.key"
    ),
    harmless=re.compile(
        r"spark\.(master|app\.name|submit\.(deploymode|pyfiles)|local\.dir|default\.parallelism"
        r"|(sql|ui|driver|task|scheduler|shuffle|memory|rpc|network|storage|locality|cleaner"
        r"|broadcast|speculation|dynamicallocation|python|pyspark|eventlog|history|port"
        r"|blockmanager|reducer|rdd|serializer|io|files|archives|jars|cores|stage|excludeonfailure"
        r"|databricks\.delta)(\.[a-z0-9.]+)?"
        r"|executor\.(cores|memory|memoryoverhead|memoryoverheadfactor|instances|heartbeatinterval"
        r"|extrajavaoptions|extraclasspath|extralibrarypath|pyspark\.memory|logs\.[a-z.]+))"
    ),
)
# A secret in the options of a JVM: they are shown, since one must see them to mend them.
_JAVA_PROPERTY: Final = re.compile(
    r"(-D\S*(?:secret|password|passphrase|token|credential|jaas|key)[^\s=]*=)\S+", re.IGNORECASE
)
# A password in a URI's authority.
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+@")


def library_options(values: Any, section: str, library: Library) -> dict[str, str]:
    """Returns the settings of a library, with secrets from their variables and files.

    Input: the section of the file; `<key>_env` and `<key>_file` say where a key's value is.
    Errors: SettingsError.
    """
    options: dict[str, str] = {}
    known: set[str] = set()

    for name, value in section_of(values, section).items():
        setting = f"{section} {name}"
        key, ending = secret_name(name)

        if key.lower() in library.reserved:
            raise SettingsError(f"{setting} is set by txlake; connection settings are allowed")
        if not ending and library.is_secret(key):
            raise SettingsError(
                f"{setting}: a secret does not stand in a settings file; use {key}_env (a "
                f"variable) or {key}_file (a file)"
            )
        if library.name(key) in known:
            raise SettingsError(f"{section} {key} stands twice: one of them is allowed")
        known.add(library.name(key))

        text = _text(value, setting)
        _require_long(key, text, setting, library)
        options[key] = secret(name, text, section) if ending else text

    return options


def _require_long(key: str, text: str, setting: str, library: Library) -> None:
    """Checks a time limit that would end each request before its answer; 0 means no limit.

    Errors: SettingsError.
    """
    min_ms = library.ms_min.get(key, 0)
    if text.isdecimal() and 0 < int(text) < min_ms:
        raise SettingsError(
            f"{setting} = {text}: at least {min_ms} ms are allowed: Kafka could not answer in less"
        )


def spark_options(values: Any, section: str) -> dict[str, str]:
    """Returns the settings of Spark; nested sections of TOML are joined by dots.

    Errors: SettingsError.
    """
    options = library_options(dict(flatten(section_of(values, section))), section, SPARK)

    for key in options:
        if not key.startswith("spark.") or "\0" in key:
            raise SettingsError(f"{section} {key}: settings that begin with spark. are allowed")

    return options


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of nested sections, their keys joined by dots."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            yield from flatten(value, name)
        else:
            yield name, value


def redacted(library: Library | None, name: str, value: Any) -> Any:
    """Returns a setting's value as people may see it.

    Input: `name`, as the file has it: the name of a secret's variable or file is no secret;
    `library`: the library of the setting, None for one of ours.
    """
    if library is not None and not secret_name(name)[1] and not library.is_harmless(name):
        return HIDDEN
    if not isinstance(value, str):
        return value

    return _JAVA_PROPERTY.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", value))


def _text(value: Any, setting: str) -> str:
    """Returns a setting's value as the text for the library."""
    if not isinstance(value, str | int | float | bool) or "\0" in str(value):
        raise SettingsError(f"{setting}: text without NUL, a number, true or false is allowed")
    return str(value).lower() if isinstance(value, bool) else str(value)
