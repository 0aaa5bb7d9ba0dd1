"""Every scenario, in the order in which they are run."""

from tools.differential.scenarios import (
    configs,
    describing,
    fetch,
    fetch_sessions,
    frames,
    group_admin,
    group_members,
    group_offsets,
    group_rebalance,
    metadata,
    offsets,
    produce,
    produce_batches,
    records,
    topics,
    topics_created,
)

ALL = (
    *frames.SCENARIOS,
    *metadata.SCENARIOS,
    *topics_created.SCENARIOS,
    *topics.SCENARIOS,
    *produce.SCENARIOS,
    *produce_batches.SCENARIOS,
    *fetch.SCENARIOS,
    *fetch_sessions.SCENARIOS,
    *offsets.SCENARIOS,
    *records.SCENARIOS,
    *configs.SCENARIOS,
    *describing.SCENARIOS,
    *group_admin.SCENARIOS,
    *group_offsets.SCENARIOS,
    *group_members.SCENARIOS,
    *group_rebalance.SCENARIOS,
)
