"""The job's settings: `values` says what they are, `reading` reads them from TOML."""

from pipelines.settings.reading import SettingsError, load, parse
from pipelines.settings.values import (
    DelaySettings,
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
    "DelaySettings",
    "KafkaSettings",
    "LakeSettings",
    "LogSettings",
    "MaintenanceSettings",
    "MetricsSettings",
    "Settings",
    "SettingsError",
    "StreamSettings",
    "TopicSettings",
    "TransactionSettings",
    "load",
    "parse",
]
