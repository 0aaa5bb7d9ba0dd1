"""What one side encodes, the other decodes to the same message, as a whole frame and at any position."""

from random import Random

import pytest

from penstock.protocol.compiler import decode, encode
from penstock.protocol.frames import decode_request, decode_response, encode_request, encode_response
from tests.protocol.samples import CASES, Case, sample, samples

SIZE_BYTES = 4


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_frame_says_its_size_and_comes_back_as_the_same_message(case: Case) -> None:
    api, version = case.api, case.version
    for message in samples(case, count=4):
        if case.side == "request":
            frame = b"".join(encode_request(api, version, 77, "client", message))
            assert decode_request(api, version, memoryview(frame)[SIZE_BYTES:]) == message
        else:
            frame = b"".join(encode_response(api, version, -5, message))
            assert decode_response(api, version, memoryview(frame)[SIZE_BYTES:]) == (-5, message)
        assert int.from_bytes(frame[:SIZE_BYTES]) == len(frame) - SIZE_BYTES


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_a_message_is_found_at_its_position_and_what_follows_is_left_alone(case: Case) -> None:
    message = sample(case.message, case.version, Random(str(case)))
    encoded = b"".join(encode(case.message, case.version, case.flexible, message))
    for buffer in (bytes, bytearray, memoryview):
        data = buffer(b"before" + encoded + b"after")
        decoded, end = decode(case.message, case.version, case.flexible, data, 6)
        assert (decoded, end) == (message, 6 + len(encoded))
