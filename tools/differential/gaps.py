"""Intended differences. Each id is a row of docs/protocol-gaps.md, which gives the reason.

A gap covers a difference when its case and path patterns match (shell patterns; `*` also spans dots)
and, where given, the two values match too. A gap that covers nothing in a complete run is
reported: either the difference is gone, or the pattern is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools.differential.batch_contents import AFTER_DELETION, LARGEST_TIME, STORED, refused_here
from tools.differential.broker_settings import (
    ONLY_KAFKA_HAS,
    ONLY_PENSTOCK_HAS,
    READ_ONLY_HERE,
    READ_ONLY_THERE,
    VALUES,
)
from tools.differential.compare import ABSENT, Difference


@dataclass(frozen=True)
class Gap:
    id: str
    case: str
    path: str = "*"
    kafka: str = "*"
    penstock: str = "*"

    def covers(self, case: str, difference: Difference) -> bool:
        return (
            fnmatchcase(case, self.case)
            and fnmatchcase(difference.path, self.path)
            and fnmatchcase(str(difference.kafka), self.kafka)
            and fnmatchcase(str(difference.penstock), self.penstock)
        )


def covering(gaps: Sequence[Gap], case: str, difference: Difference) -> Gap | None:
    """The first gap that covers the difference."""
    return next((gap for gap in gaps if gap.covers(case, difference)), None)


_BROKER = "describe-configs/broker"
_SETTINGS = "results.4:1.configs"

GAPS: tuple[Gap, ...] = (
    Gap("G1", "api-versions/*", "api_keys.*", penstock=ABSENT),
    Gap("G2", "api-versions/*", "*_features.*", penstock=ABSENT),
    Gap("G2", "api-versions/*", "*_features.penstock.version", kafka=ABSENT),
    Gap("G3", "auto-creation/first"),
    Gap("G4", "create-topics-configs/config message format"),
    Gap("G4", "create-topics-configs/config down-conversion"),
    Gap("G4", "create-topics-configs/config timestamp difference"),
    Gap("G5", "*", "*.configs.local.retention.*", penstock=ABSENT),
    Gap("G5", "*", "*.configs.remote.*", penstock=ABSENT),
    Gap("G5", "create-topics-configs/config local retention"),
    Gap("G6", "*", "*.configs.flush.policy", kafka=ABSENT),
    Gap("G6", "*", "*.configs.retention.topic.bytes", kafka=ABSENT),
    Gap("G7", "*", "*.configs.min.insync.replicas*"),
    *(Gap("G8", _BROKER, f"{_SETTINGS}.{name}", penstock=ABSENT) for name in sorted(ONLY_KAFKA_HAS)),
    *(Gap("G8", _BROKER, f"{_SETTINGS}.{name}", kafka=ABSENT) for name in sorted(ONLY_PENSTOCK_HAS)),
    *(Gap("G8", _BROKER, f"{_SETTINGS}.{name}.read_only", "False", "True") for name in READ_ONLY_HERE),
    *(Gap("G8", _BROKER, f"{_SETTINGS}.{name}.read_only", "True", "False") for name in READ_ONLY_THERE),
    *(Gap("G8", _BROKER, f"{_SETTINGS}.{field}", kafka, ours) for field, kafka, ours in VALUES),
    Gap("G9", "*", "*error_message", kafka="None", penstock="<text>"),
    Gap("G10", "produce-lengths/null*", kafka="(no answer)"),
    Gap("G10", "alter-configs/twice", kafka="(no answer)"),
    Gap("G11", "produce-headers/codec *", "*.error_code", kafka="-1", penstock="87"),
    Gap("G11", "fetch/isolation 2", kafka="-1", penstock="42"),
    Gap("G11", "fetch/isolation 2", "responses.fetched", penstock=ABSENT),
    Gap("G11", "fetch/bytes -1"),
    Gap("G11", "fetch/partition bytes -1"),
    Gap("G11", "incremental-alter-configs/operation *", "*.error_code", kafka="-1", penstock="42"),
    Gap("G11", "group-settings/operation 4", "*.error_code", kafka="-1", penstock="42"),
    Gap("G11", "unknown-broker-configs/appended", "*.error_code", kafka="-1", penstock="42"),
    Gap("G11", "unknown-broker-configs/subtracted", "*.error_code", kafka="-1", penstock="42"),
    Gap("G12", "create-topics-configs/config with spaces", "*.value"),
    Gap("G12", "create-topics-configs/config both policies with a space", "*.value"),
    Gap("G12", "create-topics-configs/config boolean in capitals", "*.value"),
    Gap("G13", "frames/negative array length", penstock="(connection closed)"),
    Gap("G13", "frames/string that is not UTF-8", penstock="(connection closed)"),
    Gap("G13", "frames/client id of length -2", penstock="(connection closed)"),
    Gap("G14", "api-versions/v99 without a tag section", kafka="(connection closed)"),
    Gap("G15", "fetch/partition bytes for one and a half", "*.records.1", penstock=ABSENT),
    Gap("G16", "find-coordinator/*transaction*"),
    Gap("G16", "find-coordinator/share group*"),
    Gap("G16", "init-producer-id/transactional id", "error_code", kafka="0", penstock="31"),
    Gap("G16", "init-producer-id/transactional id", "producer_*", penstock="-1"),
    Gap("G17", "list-config-resources/type 8", "config_resources.*", penstock=ABSENT),
    *(Gap("G18", *field) for stored in STORED for field in stored.fields()),
    *(Gap("G18", *field) for field in (*LARGEST_TIME, *AFTER_DELETION)),
    Gap("G19", "produce-same-partition-twice/*"),
    Gap("G21", "produce-*/append time by the client"),
    *(Gap("G21", *field) for field in refused_here("produce-headers", 26)),
    Gap("G22", "describe-configs/*", "*.synonyms.*", kafka=ABSENT),
    Gap("G23", "describe-configs/*twice*"),
    Gap("G23", "describe-groups/the same twice", "groups.described#2", penstock=ABSENT),
    Gap("G23", "consumer-group-kinds/the same twice", "groups.kinds-unknown#2", penstock=ABSENT),
    Gap("G24", "produce-compacted/no key and from the future", "*.record_errors.*"),
    Gap("G25", "join-group/refused groups", "groups.refused.group_state", kafka="Empty", penstock="Dead"),
    Gap("G25", "join-group/refused groups", "groups.refused.error_code", kafka="0", penstock="69"),
    Gap("G26", "join-group/empty instance", "error_code", "0", "42"),
    Gap("G26", "join-group/empty instance", "generation_id", "1", "-1"),
    Gap("G26", "join-group/empty instance", "protocol_*", penstock="None"),
    Gap("G26", "join-group/empty instance", "leader", penstock=""),
    Gap("G26", "join-group/empty instance", "member_id", penstock=""),
    Gap("G26", "join-group/empty instance", "members.*", penstock=ABSENT),
    Gap("G27", "offset-delete/of a group whose metadata cannot be read", "error_code", "0", "68"),
    Gap("G27", "offset-delete/of a group whose metadata cannot be read", "topics.*", penstock=ABSENT),
    Gap("G28", "join-group-pending/one was pending", "*.group_state", "PreparingRebalance", "Stable"),
    Gap("G28", "join-group-pending/one was pending", "*.protocol_data", "", "range"),
    Gap("G28", "join-group-pending/one was pending", "*.member_metadata", ""),
    Gap("G29", "consumer-group*", "heartbeat_interval_ms", "5000", "1000"),
    Gap("G29", "consumer-group/*", "heartbeat_interval_ms", "5000", "200"),
    Gap("G29", "consumer-group-patterns/enters*", "heartbeat_interval_ms", "5000", "200"),
    Gap("G30", "consumer-group-invalid/v? unknown group", "error_code", "69", "25"),
    Gap("G30", "consumer-group-kinds/a heartbeat of the new kind", "error_code", "69", "25"),
    Gap("G31", "consumer-group/*other topics", "*assignment.topic_partitions.<id of moving>.partitions.?"),
    Gap("G29", "group-settings-obeyed/*", "heartbeat_interval_ms", "5000", "1000"),
    *(
        Gap("G29", "group-settings*", f"*.configs.consumer.heartbeat.interval.ms.{field}", "5000", "1000")
        for field in ("value", "synonyms.0.value")
    ),
    Gap("G33", "group-settings*", "*.configs.share.*", penstock=ABSENT),
    Gap("G33", "group-settings*", "*.configs.streams.*", penstock=ABSENT),
    Gap("G34", "group-settings-replaced/listed again", "config_resources.*", penstock=ABSENT),
    Gap("G35", "unknown-broker-configs/without a name", "*.error_code", kafka="0", penstock="42"),
)
