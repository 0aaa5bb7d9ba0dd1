"""Changes that no client may make to internal topics, because groups would lose their committed offsets.

Kafka allows most of these changes and leaves the consequences to the operator.
"""

from collections.abc import Mapping

from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC, INTERNAL_TOPICS

_COMPACT = "compact"


def internal_topic_error(name: str) -> ApiError | None:
    """The error for a client that creates, grows or deletes this topic; None if that is allowed."""
    if name not in INTERNAL_TOPICS:
        return None
    detail = f"{name} is the broker's own: it is created when it is needed, and kept."
    return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)


def validate_internal_settings(name: str, overrides: Mapping[str, str]) -> None:
    if name == GROUP_TOPIC and overrides.get("cleanup.policy") != _COMPACT:
        detail = f"{name} must have cleanup.policy={_COMPACT}: retention would delete the places of groups."
        raise ApiError(ErrorCode.INVALID_CONFIG, detail)
