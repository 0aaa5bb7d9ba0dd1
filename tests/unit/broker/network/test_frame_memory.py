"""What a connection holds of requests is counted once, in the budget it was taken from."""

from penstock.broker.network.memory_budget import MemoryLimits
from penstock.limits import FRAME_FIRST_BYTES
from tests.unit.broker.network.test_broker_connection import IN_FLIGHT_BYTES_MAX, Client, Wiring, ask, turn

TOTAL = IN_FLIGHT_BYTES_MAX // 2


async def test_bytes_that_arrive_during_a_pause_count_until_they_are_parsed() -> None:
    world = Wiring()
    client = Client(world)
    behind = ask("now-" + "x" * 1_000)
    client.receives(ask("wait") + behind)
    assert world.shared.small_frames.free_bytes == TOTAL - len(behind)
    await turn()
    assert len(client.replies()) == 2
    assert world.shared.small_frames.free_bytes == TOTAL


async def test_so_many_held_bytes_are_a_shortage() -> None:
    """Each connection may add what it has read; together they must be noticed."""
    world = Wiring()
    clients = [Client(world) for _ in range(TOTAL // 3_000)]
    for client in clients:
        client.receives(ask("wait") + ask("now-" + "x" * 3_000))
    assert world.shared.small_frames.is_short
    for client in clients:
        client.leaves()
    assert world.shared.small_frames.free_bytes == TOTAL


async def test_a_large_request_that_loses_its_turn_to_another_stays_where_it_is() -> None:
    world = Wiring(memory=MemoryLimits(decoded_bytes_max=1_000_000))
    decoded, large = world.shared.decoded, world.shared.large_frames
    client = Client(world)
    decoded.overdraw(decoded.free_bytes + 1)
    request = ask("now-" + "x" * (FRAME_FIRST_BYTES + 500_000))
    assert client.receives(request) == len(request)
    held = large.free_bytes
    assert held < TOTAL
    for _ in range(3):
        decoded.release(decoded.total_bytes - decoded.free_bytes)  # its turn has come
        decoded.overdraw(decoded.free_bytes + 10_000)  # and somebody else was faster
        await turn()
        assert client.replies() == []
        assert large.free_bytes == held
        assert world.shared.small_frames.free_bytes >= TOTAL - FRAME_FIRST_BYTES
    decoded.release(decoded.total_bytes - decoded.free_bytes)
    await turn()
    assert len(client.replies()) == 1
    assert (large.free_bytes, world.shared.small_frames.free_bytes) == (TOTAL, TOTAL)
    assert decoded.free_bytes == decoded.total_bytes
    assert world.bugs == []
