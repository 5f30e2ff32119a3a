"""[security]: the keys of producer groups and of operators, read from variables and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.settings.errors import SettingsError, section_of
from pipelines.settings.nearest import did_you_mean
from pipelines.settings.secrets import secret, secret_name
from txlake.protocol import GROUP_PATTERN, matches
from txlake.signing import KEYS_MAX, SigningKey, group_keys

_KEYS: Final = "keys"
_OPERATORS: Final = "operators"
_REQUIRE_ID: Final = "require_transaction_id"
_NAMES: Final = (_KEYS, _OPERATORS, _REQUIRE_ID)


@dataclass(frozen=True)
class SecuritySettings:
    """The keys for signing operations and checks; the first one of each signs.

    `keys`: by producer group, one or two; `operators`: any number, by their ids.
    `require_transaction_id`: whether a producer's operation must name its transaction.
    """

    keys: Mapping[str, tuple[SigningKey, ...]] = field(default_factory=dict)
    operators: Mapping[str, SigningKey] = field(default_factory=dict)
    require_transaction_id: bool = True


def read_security(values: Mapping[str, Any], source: str) -> SecuritySettings:
    """Returns the keys that [security] names. Errors: SettingsError."""
    for name in values:
        if name not in _NAMES:
            raise SettingsError(
                f"{source}: [security] {name} is unknown; the keys are {', '.join(_NAMES)}"
                f"{did_you_mean(name, _NAMES)}"
            )

    is_required = values.get(_REQUIRE_ID, True)
    if not isinstance(is_required, bool):
        raise SettingsError(
            f"{source}: [security] {_REQUIRE_ID} = {is_required!r}: true or false is allowed"
        )

    groups = section_of(values.get(_KEYS, {}), f"{source}: [security.keys]")
    keys = {}
    for group, group_values in groups.items():
        section = f"{source}: [security.keys.{group}]"
        if not matches(GROUP_PATTERN, group):
            raise SettingsError(f"{section}: a group's name like {GROUP_PATTERN} is allowed")
        group_secrets = _read(group_values, section)
        if not group_secrets:
            raise SettingsError(f"{section} is empty: one key is needed, at most {KEYS_MAX}")

        try:
            keys[group] = group_keys(group_secrets.values())
        except ValueError as error:
            raise SettingsError(f"{section}: {error}") from None

    section = f"{source}: [security.operators]"

    return SecuritySettings(keys, _read(values.get(_OPERATORS, {}), section), is_required)


def _read(values: Any, section: str) -> dict[str, SigningKey]:
    """Returns the keys of a table: `<key id>_env` or `<key id>_file` names a secret's place."""
    keys: dict[str, SigningKey] = {}

    for name, value in section_of(values, section).items():
        key_id, ending = secret_name(name)

        if not ending:
            raise SettingsError(
                f"{section} {name}: a secret does not stand in a settings file; use "
                f"<key id>_env (a variable) or <key id>_file (a file)"
            )
        if not isinstance(value, str):
            raise SettingsError(f"{section} {name}: text is allowed")
        if key_id in keys:
            raise SettingsError(f"{section} {key_id} stands twice: each key needs its own id")

        try:
            keys[key_id] = SigningKey(key_id, secret(name, value, section).encode())
        except ValueError as error:
            raise SettingsError(f"{section} {name}: {error}") from None

    return keys
