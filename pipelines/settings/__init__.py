"""The job's settings: `values` defines them, `reading` reads them from TOML."""

from pipelines.settings.bodies import BodySettings
from pipelines.settings.errors import SettingsError
from pipelines.settings.library_options import SPARK, redacted
from pipelines.settings.publish import PublisherSettings
from pipelines.settings.reading import load, parse, warn_of_open_secrets
from pipelines.settings.redaction import redacted_settings
from pipelines.settings.security import SecuritySettings
from pipelines.settings.values import (
    DelaySettings,
    HealthSettings,
    KafkaSettings,
    LakeSettings,
    LogSettings,
    MaintenanceSettings,
    MetricsSettings,
    Settings,
    StreamSettings,
    TopicSettings,
    TransactionSettings,
)

__all__ = [
    "SPARK",
    "BodySettings",
    "DelaySettings",
    "HealthSettings",
    "KafkaSettings",
    "LakeSettings",
    "LogSettings",
    "MaintenanceSettings",
    "MetricsSettings",
    "PublisherSettings",
    "SecuritySettings",
    "Settings",
    "SettingsError",
    "StreamSettings",
    "TopicSettings",
    "TransactionSettings",
    "load",
    "parse",
    "redacted",
    "redacted_settings",
    "warn_of_open_secrets",
]
