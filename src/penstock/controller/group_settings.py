"""Decisions about the dynamic settings of groups, of the same form as those in `topics.py`."""

from collections.abc import Mapping

from penstock.controller.decision import Decision
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Delete, Put
from penstock.limits import GROUPS_WITH_SETTINGS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import GroupConfigValue, encode
from penstock.metadata.keys import ClusterKeys


def alter_group_config(
    image: ClusterImage,
    group_id: str,
    overrides: Mapping[str, str],
    groups_max: int = GROUPS_WITH_SETTINGS_MAX,
) -> Decision:
    """Replace the settings of a group. The caller has validated `overrides`, the whole new set; the group
    need not exist yet.
    """
    revision = image.overrides_of_group(group_id).revision
    is_new = revision == ABSENT
    if is_new and not overrides:
        return Decision((), ())
    # Settings outlive their groups and are held in memory by every broker, hence the limit.
    if is_new and len(image.group_overrides) >= groups_max:
        detail = f"At most {groups_max} groups have settings of their own."
        raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
    key = ClusterKeys(image.cluster_id).group_config(group_id)
    change = Put(key, encode(GroupConfigValue(dict(overrides)))) if overrides else Delete(key)
    return Decision((Compare(key, revision),), (change,))
