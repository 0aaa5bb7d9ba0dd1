"""Raises the cluster's level, once every registered broker supports the next level."""

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_term
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Compare, Put
from penstock.metadata import levels
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import FeaturesValue, encode_document
from penstock.metadata.keys import ClusterKeys


def upgrade(image: ClusterImage, level: int, *, newest: int = levels.NEWEST) -> Decision:
    """Allow the formats of this level to be written. Compares the level, every registration and the term.

    Brokers that are down count too: they would be rejected when they come back. A broker that will not come
    back must be unregistered first.
    """
    if level == image.level:
        return NOTHING_TO_DO
    if level < image.level:
        detail = f"The cluster is at level {image.level}, which cannot be lowered to {level}."
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, detail)
    _require_known(image, level, newest=newest)
    keys = ClusterKeys(image.cluster_id)
    # A broker that restarts with an older release at the same time must cause a conflict.
    registered = (Compare(keys.broker(broker.id), broker.revision) for broker in image.brokers.values())
    value = FeaturesValue({**image.features.levels, levels.FEATURE: level})
    return Decision(
        (*compare_term(image), Compare(keys.features, image.features.revision), *registered),
        (Put(keys.features, encode_document(value)),),
    )


def _require_known(image: ClusterImage, level: int, *, newest: int) -> None:
    if level > newest:
        detail = f"Level {level} is not known here: this release knows {levels.OLDEST} to {newest}."
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, detail)
    behind = [str(broker.id) for broker in image.brokers.values() if broker.level_max < level]
    if behind:
        detail = (
            f"Level {level} is not known to every broker. Upgrade these first, or unregister those that are "
            f"gone for good: {', '.join(behind)}."
        )
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, detail)
