"""Groups as people see them, whichever protocol they speak."""

from penstock.coordinator.outcome import Now
from penstock.groups.embedded_protocol import (
    ConsumerProtocolAssignment,
    ConsumerTopicPartitions,
    encode_assignment,
)
from penstock.groups.group_status import classic_status, consumer_status, rebalance_status
from penstock.groups.rebalance_statistics import RebalanceStatistics
from penstock.protocol.messages.consumer_group_describe import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedMember,
    DescribedTopicPartitions,
)
from penstock.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from penstock.types import TopicPartition

AT_REST = rebalance_status(RebalanceStatistics(), Now(0, 0.0))
HELD = [TopicPartition("t", 0), TopicPartition("t", 2)]


def test_what_a_classic_member_holds_is_read_from_what_its_leader_sent() -> None:
    assignment = encode_assignment(ConsumerProtocolAssignment([ConsumerTopicPartitions("t", [0, 2])]))
    members = [
        DescribedGroupMember("m1", None, "c1", "/h", b"", assignment),
        DescribedGroupMember("m2", "i2", "c2", "/h", b"", b""),
        DescribedGroupMember("m3", None, "c3", "/h", b"", b"\xff\xffconnect"),
    ]
    group = DescribedGroup(group_id="g", group_state="Stable", protocol_data="range", members=members)
    status = classic_status(group, AT_REST, ())
    assert (status.type, status.state, status.assignor) == ("classic", "Stable", "range")
    assert [member.assigned for member in status.members] == [HELD, [], None]
    assert status.members[1].instance_id == "i2"


def test_what_a_consumer_member_holds_is_known_to_the_coordinator() -> None:
    assignment = DescribedAssignment([DescribedTopicPartitions(topic_name="t", partitions=[0, 2])])
    member = DescribedMember(member_id="m", client_id="c", client_host="/h", assignment=assignment)
    group = DescribedConsumerGroup(
        group_id="g", group_state="Reconciling", assignor_name="uniform", members=[member]
    )
    status = consumer_status(group, AT_REST, ())
    assert (status.type, status.state, status.assignor) == ("consumer", "Reconciling", "uniform")
    assert status.members[0].assigned == HELD


def test_rebalances_are_told_by_number_reason_and_duration() -> None:
    rebalances = RebalanceStatistics()
    assert rebalance_status(rebalances, Now(0, 5.0)) == (0, "", None, None)
    rebalances.begin("m joined", Now(0, 10.0))
    assert rebalance_status(rebalances, Now(0, 12.5)) == (1, "m joined", None, 2_500)
    rebalances.end(Now(0, 13.0))
    assert rebalance_status(rebalances, Now(0, 99.0)) == (1, "m joined", 3_000, None)
