"""The table of keys: what a dict would say, within its memory."""

import sys
from random import Random

from penstock.log.compaction.key_map import SLOT_BYTES, KeyMap
from penstock.types import Offset


def test_it_says_what_a_dict_says() -> None:
    random, keys, model = Random(0), KeyMap(memory_bytes=1 << 20, keys_max=500), dict[bytes, int]()
    for offset in range(5_000):
        key = b"k%d" % random.randrange(500)
        assert keys.put(key, Offset(offset)) == model.get(key, -1)
        model[key] = offset
    assert keys.count == len(model)
    assert all(keys.find(key) == offset for key, offset in model.items())
    assert keys.find(b"absent") == -1


def test_offset_zero_and_the_largest_are_kept() -> None:
    keys = KeyMap(memory_bytes=1 << 12, keys_max=4)
    keys.put(b"", Offset(0))
    keys.put(b"largest", Offset(2**63 - 1))
    assert keys.find(b"") == 0
    assert keys.find(b"largest") == 2**63 - 1


def test_it_takes_as_many_keys_as_it_says_and_no_more_memory_than_it_may() -> None:
    keys = KeyMap(memory_bytes=100 * SLOT_BYTES, keys_max=10**9)
    assert keys.capacity == 48
    for number in range(keys.capacity):
        keys.put(b"%d" % number, Offset(number))
    assert keys.room == 0
    assert all(keys.find(b"%d" % number) == number for number in range(48))
    assert sys.getsizeof(keys._words.obj) <= 100 * SLOT_BYTES


def test_there_is_room_for_all_keys_that_are_announced() -> None:
    for keys_max in (1, 47, 48, 49, 1_000, 1_048_576):
        assert KeyMap(memory_bytes=1 << 30, keys_max=keys_max).capacity >= keys_max
