"""Turn the settings of [kafka.client], written as librdkafka names them, into Spark's.

Spark's source uses Kafka's Java client, which spells some settings differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.settings import KafkaSettings

# librdkafka's name -> the Java client's; what is not here has the same name in both.
_RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.key.password": "ssl.key.password",
}
_PEM = {"ssl.ca.location": "ssl.truststore", "ssl.keystore.location": "ssl.keystore"}
# Settings that only librdkafka has.
_ONLY_LIBRDKAFKA = (
    "ssl.certificate.location",
    "ssl.key.location",
    "enable.ssl.certificate.verification",
)
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_client(client: Mapping[str, str]) -> dict[str, str]:
    """Translate client settings; a CA file becomes a PEM trust store, a login a JAAS line."""
    java: dict[str, str] = {}
    for key, value in client.items():
        if key in ("sasl.username", "sasl.password", *_ONLY_LIBRDKAFKA):
            continue
        if key in _PEM:
            java[f"{_PEM[key]}.location"] = value
            java[f"{_PEM[key]}.type"] = "PEM"
        else:
            java[_RENAMED.get(key, key)] = value
    mechanism = java.get("sasl.mechanism", "")
    if mechanism in _LOGIN and "sasl.username" in client:
        user, password = (_quoted(client.get(k, "")) for k in ("sasl.username", "sasl.password"))
        java["sasl.jaas.config"] = (
            f"{_LOGIN[mechanism]} required username={user} password={password};"
        )
    return java


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    A short fetch.max.wait.ms: Spark asks for a partition's end behind its own outstanding fetch,
    and would wait half a second for each. Short time limits, a few retries: the query survives a
    broker's restart; after less than a minute without one it ends, the driver says so and starts
    it again.
    """
    options = {f"kafka.{key}": value for key, value in java_client(kafka.client).items()}
    return {
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "10000",
        "kafka.fetch.max.wait.ms": "20",
        **options,
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafkaConsumer.pollTimeoutMs": "30000",
        "fetchOffset.numRetries": "4",
        "fetchOffset.retryIntervalMs": "500",
    }
