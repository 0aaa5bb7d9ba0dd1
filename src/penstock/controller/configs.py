"""Decisions about dynamic settings of topics, brokers and groups, of the same form as those in `topics.py`.

Each takes the whole new set of overrides, which the caller has validated.
"""

from collections.abc import Mapping

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_term
from penstock.controller.topics import compare_topic, existing_topic, put_topic, require_legal_name
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Delete, Put
from penstock.limits import GROUPS_WITH_SETTINGS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import OverridesValue, encode_document
from penstock.metadata.durability import changes_min_isr
from penstock.metadata.keys import ClusterKeys


def alter_topic_config(image: ClusterImage, name: str, overrides: Mapping[str, str]) -> Decision:
    """Replace the topic's settings."""
    require_legal_name(name)
    topic = existing_topic(image, name)
    keys = ClusterKeys(image.cluster_id)
    changes = (put_topic(keys, topic, overrides=overrides),)
    return Decision((*compare_term(image), compare_topic(keys, topic)), changes)


def alter_broker_config(image: ClusterImage, broker_id: int | None, overrides: Mapping[str, str]) -> Decision:
    """Replace the settings of one broker or, for None, the cluster-wide defaults."""
    if broker_id is not None and broker_id not in image.brokers:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no broker {broker_id}.")
    key = ClusterKeys(image.cluster_id).broker_config(broker_id)
    before = image.overrides_of_broker(broker_id)
    counted = before.min_isr_changes + changes_min_isr(before.overrides, overrides)
    if not overrides and before.revision == ABSENT:
        return NOTHING_TO_DO
    # The key is never deleted. Leaders compare that it is absent, which must not become true again after it
    # once was written. And the count of min.insync.replicas changes must not restart from zero.
    change = Put(key, encode_document(OverridesValue(dict(overrides), counted)))
    return Decision((*compare_term(image), Compare(key, before.revision)), (change,))


def alter_group_config(
    image: ClusterImage,
    group_id: str,
    overrides: Mapping[str, str],
    groups_max: int = GROUPS_WITH_SETTINGS_MAX,
) -> Decision:
    """Replace the settings of a group, which need not exist yet."""
    revision = image.overrides_of_group(group_id).revision
    is_new = revision == ABSENT
    if is_new and not overrides:
        return NOTHING_TO_DO
    # Settings outlive their groups and are held in memory by every broker, hence the limit.
    if is_new and len(image.group_overrides) >= groups_max:
        detail = f"At most {groups_max} groups have settings of their own."
        raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
    key = ClusterKeys(image.cluster_id).group_config(group_id)
    change = Put(key, encode_document(OverridesValue(dict(overrides)))) if overrides else Delete(key)
    return Decision((Compare(key, revision),), (change,))
