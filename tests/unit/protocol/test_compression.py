"""Codecs: what goes in comes out, clients' codecs agree with ours, and no input expands past its cap."""

import random
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.errors import CorruptData
from penstock.protocol.compression import LEVELS, Codec, codec_named, compress, decompress

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 deprecated and 3.13 restored.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec

KIB, MIB = 1024, 1024 * 1024
REAL_CODECS = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLE = b"".join(b"order %d placed;" % number for number in range(9000))

Transform = Callable[[bytes], bytes]
CLIENTS: dict[str, tuple[Codec, Transform, Transform]] = {
    "kafka-python gzip": (Codec.GZIP, kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    "kafka-python lz4": (Codec.LZ4, kafka.codec.lz4_encode, kafka.codec.lz4_decode),
    "kafka-python zstd": (Codec.ZSTD, kafka.codec.zstd_encode, kafka.codec.zstd_decode),
    "aiokafka gzip": (Codec.GZIP, aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    "aiokafka snappy": (Codec.SNAPPY, aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    "aiokafka lz4": (Codec.LZ4, aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    "aiokafka zstd": (Codec.ZSTD, aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
}


@cache
def bomb(codec: Codec) -> bytes:
    return compress(codec, bytes(64 * MIB))


def zstd_blocks_of_four_bytes(count: int) -> bytes:
    """Each block says "one zero, 128 KiB times": the densest zstd there is, with no size announced."""
    repeat = (128 * KIB << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (128 * KIB << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x38" + repeat * (count - 1) + last


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes) -> bytes:
    header = b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1] * 2)
    return header + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def test_codecs_bear_the_numbers_and_names_of_the_protocol() -> None:
    assert [(codec.value, codec.label) for codec in Codec] == [
        (0, "none"),
        (1, "gzip"),
        (2, "snappy"),
        (3, "lz4"),
        (4, "zstd"),
    ]


def test_settings_name_codecs() -> None:
    assert [codec_named(codec.label) for codec in Codec] == list(Codec)
    assert codec_named("uncompressed") is Codec.NONE
    assert codec_named("producer") is None
    assert codec_named("brotli") is None


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=2000))
def test_what_goes_in_comes_out(codec: Codec, data: bytes) -> None:
    assert decompress(codec, memoryview(compress(codec, data)), limit_bytes=len(data)) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(c, level) for c in LEVELS for level in (LEVELS[c][0], LEVELS[c][-1])]
)
def test_every_level_is_readable(codec: Codec, level: int) -> None:
    assert decompress(codec, compress(codec, SAMPLE, level), limit_bytes=len(SAMPLE)) == SAMPLE


@pytest.mark.parametrize("codec", LEVELS)
def test_a_topic_that_prescribes_a_codec_and_no_level_can_be_written(codec: Codec) -> None:
    level = TOPIC_SETTINGS[f"compression.{codec.label}.level"].default
    assert isinstance(level, int)
    assert decompress(codec, compress(codec, SAMPLE, level), limit_bytes=len(SAMPLE)) == SAMPLE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_higher_level_compresses_better(codec: Codec) -> None:
    assert len(compress(codec, SAMPLE, LEVELS[codec][-1])) < len(compress(codec, SAMPLE, 1))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("data", [b"", b"a", SAMPLE], ids=["empty", "one byte", "several blocks"])
def test_clients_read_what_we_write_and_we_read_what_they_write(client: str, data: bytes) -> None:
    codec, encode, decode = CLIENTS[client]

    assert bytes(decode(compress(codec, data))) == data
    assert decompress(codec, bytes(encode(data)), limit_bytes=len(data)) == data


def test_a_raw_snappy_block_is_read_as_well_as_a_framed_one() -> None:
    assert decompress(Codec.SNAPPY, raw_snappy(SAMPLE), limit_bytes=len(SAMPLE)) == SAMPLE
    framed = xerial(raw_snappy(b"first "), raw_snappy(b"second"))
    assert decompress(Codec.SNAPPY, framed, limit_bytes=12) == b"first second"


def test_zstd_frames_that_do_not_announce_their_size_are_read() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    data = compressor.compress(SAMPLE) + compressor.flush()

    assert zstandard.frame_content_size(data) == -1
    assert decompress(Codec.ZSTD, data, limit_bytes=len(SAMPLE)) == SAMPLE


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    assert lz4.frame.get_frame_info(compress(Codec.LZ4, SAMPLE))["block_linked"] is False


@pytest.mark.parametrize("codec", Codec)
def test_the_cap_is_exact(codec: Codec) -> None:
    data = compress(codec, SAMPLE)

    assert len(decompress(codec, data, limit_bytes=len(SAMPLE))) == len(SAMPLE)
    with pytest.raises(CorruptData, match=str(len(SAMPLE) - 1)):
        decompress(codec, data, limit_bytes=len(SAMPLE) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_is_refused_at_the_cap_quickly_and_in_bounded_memory(codec: Codec) -> None:
    data = bomb(codec)

    started = time.process_time()
    with pytest.raises(CorruptData, match=f"{codec.label} .* limit of {4 * MIB} bytes"):
        decompress(codec, data, limit_bytes=4 * MIB)
    assert time.process_time() - started < 0.2

    assert peak_bytes(codec, data, limit_bytes=4 * MIB) < 4 * 4 * MIB + 8 * MIB


def test_the_densest_zstd_overshoots_the_cap_by_a_bounded_step() -> None:
    data = zstd_blocks_of_four_bytes(8000)

    assert len(decompress(Codec.ZSTD, zstd_blocks_of_four_bytes(8), limit_bytes=MIB)) == MIB
    assert peak_bytes(Codec.ZSTD, data, limit_bytes=MIB) < 32 * MIB


def test_a_snappy_block_that_claims_too_much_is_refused_before_it_is_expanded() -> None:
    claims_a_gigabyte = b"\x80\x80\x80\x80\x04" + b"\x00a"

    for data in (claims_a_gigabyte, xerial(raw_snappy(b"x"), claims_a_gigabyte)):
        assert peak_bytes(Codec.SNAPPY, data, limit_bytes=MIB) < MIB


def peak_bytes(codec: Codec, data: bytes, *, limit_bytes: int) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match="limit"):
            decompress(codec, data, limit_bytes=limit_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_data_cut_anywhere_is_corrupt(codec: Codec) -> None:
    data = compress(codec, b"hello, hello, hello, hello")

    for end in range(len(data)):
        # Framed snappy has no end mark: cut between header and blocks it reads as nothing at all.
        if codec is Codec.SNAPPY and end == 16:
            continue
        with pytest.raises(CorruptData):
            decompress(codec, data[:end], limit_bytes=MIB)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_bytes_after_the_frame_are_corrupt(codec: Codec) -> None:
    for extra in (b"\x00", compress(codec, b"another frame"), b"x" * 600):
        with pytest.raises(CorruptData):
            decompress(codec, compress(codec, b"hello") + extra, limit_bytes=MIB)


def test_bytes_after_a_zstd_frame_are_corrupt_wherever_it_ends() -> None:
    """Frames are expanded in steps; one that ends with a step must not hide what follows."""
    noise = random.Random(1).randbytes(600)
    for size in range(200, 600):
        with pytest.raises(CorruptData, match="belong to nothing"):
            decompress(Codec.ZSTD, compress(Codec.ZSTD, noise[:size]) + b"x", limit_bytes=MIB)


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(noise=st.binary(max_size=200), keep=st.integers(0, 30))
def test_noise_is_corrupt_or_harmless(codec: Codec, noise: bytes, keep: int) -> None:
    data = compress(codec, SAMPLE[:100])[:keep] + noise
    try:
        assert len(decompress(codec, data, limit_bytes=MIB)) <= MIB
    except CorruptData:
        return


def test_loading_the_module_loads_no_codec_library() -> None:
    """A broker that never expands a batch should not pay for the libraries."""
    script = (
        "import sys, penstock.protocol.records; "
        "print(sorted({'lz4', 'zstandard', 'cramjam'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
