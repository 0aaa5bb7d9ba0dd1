"""Checks of a simulated cluster: which states they accept, and which they report."""

from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.replication.leading import LeaderRole
from penstock.sim.cluster.cluster import starts_agree
from tests.unit.sim.scene import TOPIC, Scene


def test_replicas_start_at_one_offset_where_nothing_expires() -> None:
    assert starts_agree({1: 443, 2: 443, 3: 443}, leader=3, has_retention=False)
    assert not starts_agree({1: 644, 2: 443, 3: 443}, leader=3, has_retention=False)


def test_a_follower_may_start_later_where_records_expire() -> None:
    """The follower was the leader, and its clock is ahead of the present leader's."""
    assert starts_agree({1: 644, 2: 443, 3: 443}, leader=3, has_retention=True)


def test_no_follower_starts_before_its_leader() -> None:
    assert not starts_agree({1: 644, 2: 443, 3: 644}, leader=3, has_retention=True)


def test_starts_cannot_agree_before_a_replica_leads() -> None:
    assert not starts_agree({1: 443, 2: 443}, leader=-1, has_retention=True)


def test_a_stale_leader_may_count_a_follower_that_lost_its_disk() -> None:
    """The metadata store has removed that follower from the ISR, and the leader has not received that."""

    async def play(scene: Scene) -> None:
        leader = await leader_that_is_not_controller(scene)
        lost = scene.truth.image.controller_id
        (paused,) = set(scene.nodes) - {leader, lost}
        await scene.write()
        resume = scene.nodes[paused].pause()
        role = leading(scene, leader)
        await scene.until(lambda _: role.acknowledged_end(lost) > role.high_watermark, 5)
        scene.nodes[leader].delay_watch_events(True)
        await scene.nodes[lost].kill()
        scene.nodes[lost].wipe()
        scene.nodes[lost].start()
        await scene.until(lambda image: image.admitted == set(scene.nodes) and lost not in isr_of(image), 5)
        high = role.high_watermark
        assert role.acknowledged_end(lost) > end_of(scene, lost), "it has lost what it confirmed"
        resume()
        await scene.until(lambda _: role.high_watermark > high, 5)
        assert lost in role.isr, "the leader still counts it"
        scene.nodes[leader].delay_watch_events(False)
        await scene.until(lambda image: isr_of(image) == set(scene.nodes))
        await scene.read_everything()

    Scene(play).run()


async def leader_that_is_not_controller(scene: Scene) -> int:
    """The preferred leader, after a restart that gave another broker the controller's work."""
    leader = scene.truth.image.topics[TOPIC].partitions[0].leader
    await scene.nodes[leader].stop(30)
    await scene.nodes[leader].kill()
    scene.nodes[leader].start()
    await scene.until(
        lambda image: image.topics[TOPIC].partitions[0].leader == leader and isr_of(image) == set(scene.nodes)
    )
    assert scene.truth.image.controller_id not in (leader, NO_NODE)
    return leader


def isr_of(image: ClusterImage) -> set[int]:
    return set(image.topics[TOPIC].partitions[0].isr)


def leading(scene: Scene, node_id: int) -> LeaderRole:
    partition = scene.broker(node_id).storage.partitions.find(TOPIC, 0)
    assert partition is not None
    assert partition.leading is not None
    return partition.leading


def end_of(scene: Scene, node_id: int) -> int:
    partition = scene.broker(node_id).storage.partitions.find(TOPIC, 0)
    assert partition is not None
    return partition.log.log_end_offset
