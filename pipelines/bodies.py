"""The schemas of bodies that the settings name: `[topics.NAME] body = "json"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines.settings import BodySettings, SettingsError

if TYPE_CHECKING:
    from txlake import BodySchema


def read_body_schemas(bodies: Mapping[str, BodySettings]) -> dict[str, BodySchema]:
    """Returns the schema of each topic's bodies.

    Errors: SettingsError for a schema that is wrong, or a library that it needs and that is
    missing.
    """
    if not bodies:
        return {}
    from txlake.bodies import read_schema
    from txlake.errors import SchemaError

    schemas = {}
    for topic, body in bodies.items():
        try:
            schemas[topic] = read_schema(
                body.body, body.schema, message=body.message, skip_bytes=body.skip_bytes
            )
        except (SchemaError, ImportError) as error:
            raise SettingsError(f"{body.place} schema: {error}") from error
    return schemas
