"""Requests of real clients, and what becomes of them on a bad day.

The corpus is made by `python -m tools.fuzz.capture`: a file for each frame, without its size.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

CORPUS = Path(__file__).parent / "corpus"
# Numbers that decoders are known to stumble over: ends of types, one beyond, null, compact null.
BOUNDARY_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
SIZE_BYTES = 4
FRAME_BYTES_MIN = 12

Mutation = Callable[[bytearray, Random], None]


@cache
def captured_frames() -> tuple[tuple[str, bytes], ...]:
    """(file name, frame), in a stable order."""
    return tuple((path.name, path.read_bytes()) for path in sorted(CORPUS.glob("*.bin")))


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(SIZE_BYTES, "big") + frame


def flip_bits(frame: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)


def overwrite_with_a_boundary_number(frame: bytearray, random: Random) -> None:
    width = random.choice((1, 2, 4, 8))
    at = random.randrange(max(1, len(frame) - width))
    frame[at : at + width] = (random.choice(BOUNDARY_NUMBERS) % 256**width).to_bytes(width, "big")


def cut_off_the_end(frame: bytearray, random: Random) -> None:
    del frame[random.randrange(FRAME_BYTES_MIN, len(frame) + 1) :]


def remove_a_piece(frame: bytearray, random: Random) -> None:
    at = random.randrange(len(frame))
    del frame[at : at + random.randrange(1, 9)]


def repeat_a_piece(frame: bytearray, random: Random) -> None:
    at = random.randrange(len(frame))
    piece = frame[at : at + random.randrange(1, 33)]
    frame[at:at] = piece * random.choice((1, 2, 50))


def swap_two_pieces(frame: bytearray, random: Random) -> None:
    width = random.randrange(1, 9)
    if len(frame) < 2 * width + 1:
        return
    first, second = sorted(random.sample(range(len(frame) - width), 2))
    if second < first + width:
        return
    one, other = frame[first : first + width], frame[second : second + width]
    frame[first : first + width], frame[second : second + width] = other, one


def take_another_version(frame: bytearray, random: Random) -> None:
    frame[2:4] = random.choice((0, 1, 5, 9, 12, 13, 17, 99, 0x7FFF, 0xFFFF)).to_bytes(2, "big")


def take_another_key(frame: bytearray, random: Random) -> None:
    frame[0:2] = random.choice((0, 1, 2, 3, 18, 19, 20, 22, 44, 99, 0x7FFF, 0xFFFF)).to_bytes(2, "big")


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    overwrite_with_a_boundary_number,
    cut_off_the_end,
    remove_a_piece,
    repeat_a_piece,
    swap_two_pieces,
    take_another_version,
    take_another_key,
)


def mutated(frame: bytes, random: Random) -> bytes:
    """The frame after one to three accidents."""
    spoilt = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(MUTATIONS)(spoilt, random)
        spoilt += bytes(max(0, FRAME_BYTES_MIN - len(spoilt)))
    return bytes(spoilt)


def hostile_stream(frames: list[bytes], random: Random) -> bytes:
    """Frames as they came, spoilt, doubled and in another order; some with a size that lies."""
    stream = [framed(mutated(frame, random) if random.random() < 0.7 else frame) for frame in frames]
    if random.random() < 0.3:
        stream.append(random.choice(stream))
    random.shuffle(stream)
    if random.random() < 0.2:
        at = random.randrange(len(stream))
        lie = random.choice(BOUNDARY_NUMBERS) % 2**32
        stream[at] = lie.to_bytes(SIZE_BYTES, "big") + stream[at][SIZE_BYTES:]
    if random.random() < 0.2:
        stream[-1] = stream[-1][: random.randrange(len(stream[-1]))]
    return b"".join(stream)
