"""`python -m tools.faults.slow_link NEAR FAR LATENCY RATE`: a slow link between two network devices.

Each frame from one device is sent to the other one later, with a limited number of bytes a second in each
direction. A frame that would wait too long is dropped, as by a switch whose buffer is full. Frames are
forwarded with their virtio header, which says what the kernel has left to the device (checksums,
segmentation), so no offloading has to be switched off.
"""

import selectors
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final

ETH_P_ALL: Final = 3
SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
PACKET_IGNORE_OUTGOING: Final = 23
SO_RCVBUFFORCE: Final = 33
FRAME_BYTES_MAX: Final = 1 << 17
BUFFER_BYTES: Final = 8 << 20
WAIT_S_MAX: Final = 2.0


class Direction:
    """One direction of the link: frames under way, with their times of arrival. Pure."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._on_its_way: deque[tuple[float, bytes]] = deque()

    def enter(self, frame: bytes, now: float) -> None:
        free_at = max(self._free_at, now) + len(frame) / self._bytes_per_s
        if free_at - now <= WAIT_S_MAX:
            self._free_at = free_at
            self._on_its_way.append((free_at + self._latency_s, frame))

    def arrived(self, now: float) -> list[bytes]:
        frames: list[bytes] = []
        while self._on_its_way and self._on_its_way[0][0] <= now:
            frames.append(self._on_its_way.popleft()[1])
        return frames

    @property
    def next_at(self) -> float | None:
        return self._on_its_way[0][0] if self._on_its_way else None


def _device(name: str) -> socket.socket:
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    device.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    device.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    with suppress(
        PermissionError
    ):  # some kernels forbid this in a user namespace: the buffer is smaller then
        device.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    device.bind((name, ETH_P_ALL))
    device.setblocking(False)
    return device


def main(near_name: str, far_name: str, latency_s: float, bytes_per_s: float) -> None:
    near, far = _device(near_name), _device(far_name)
    directions = {
        near: (Direction(latency_s, bytes_per_s), far),
        far: (Direction(latency_s, bytes_per_s), near),
    }
    selector = selectors.DefaultSelector()
    for device in directions:
        selector.register(device, selectors.EVENT_READ, device)
    print("forwarding", flush=True)
    while True:
        due = [direction.next_at for direction, _ in directions.values() if direction.next_at is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in selector.select(timeout):
            _receive(key.data, directions[key.data][0])
        for direction, other in directions.values():
            for frame in direction.arrived(time.monotonic()):
                _send(other, frame)


def _receive(device: socket.socket, direction: Direction) -> None:
    while True:
        try:
            frame = device.recv(FRAME_BYTES_MAX)
        except BlockingIOError:
            return
        direction.enter(frame, time.monotonic())


def _send(device: socket.socket, frame: bytes) -> None:
    with suppress(BlockingIOError):  # the device is full: TCP retransmits
        device.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
