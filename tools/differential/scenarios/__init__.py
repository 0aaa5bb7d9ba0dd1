"""Every scenario, in the order in which they are run."""

from tools.differential.scenarios import (
    configs,
    describing,
    fetch,
    fetch_sessions,
    frames,
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
)
