"""What a controller and leaders do, step by step, until there is nothing to do."""

from penstock.controller.isr import AlterPartition, IsrMember, change_isr
from penstock.controller.upkeep import Task, urgent_work
from penstock.metadata.cluster_image import ClusterImage
from tests.unit.controller.controller_support import StoredCluster

STEPS_MAX = 100


def upkeep(cluster: StoredCluster) -> list[Task]:
    """Do all that is urgent. The tasks, in order."""
    done: list[Task] = []
    while (work := urgent_work(cluster.image)) is not None:
        done.append(work.task)
        assert len(done) < STEPS_MAX, "there is always more to do"
        attempts = [cluster.attempt(decision) for decision in work.decisions]
        assert any(attempts)
    return done


def proposal(image: ClusterImage, *isr: int, topic: str = "t", index: int = 0) -> AlterPartition:
    """Proposal of the leader in the image, with each member in its present epoch."""
    state = image.topics[topic].partitions[index]
    members = tuple(IsrMember(node, image.brokers[node].broker_epoch) for node in isr)
    leader = IsrMember(state.leader, image.brokers[state.leader].broker_epoch)
    return AlterPartition(
        image.topics[topic].id, index, leader, state.leader_epoch, state.partition_epoch, members
    )


def shrink(cluster: StoredCluster, *isr: int, topic: str = "t", index: int = 0) -> None:
    """Or grow: these are in sync now."""
    cluster.commit(change_isr(cluster.image, proposal(cluster.image, *isr, topic=topic, index=index)))
