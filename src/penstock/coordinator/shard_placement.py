"""The mapping from a key to its shard. It is Kafka's, so that tools which compute it find the same shard."""

from penstock.limits import INT_MAX

_BITS_32 = 2**32 - 1


def shard_of(key: str, shards: int) -> int:
    assert shards > 0, "a topic has partitions"
    number = java_hash(key)
    # Like Kafka: the smallest int has no positive counterpart and counts as zero.
    return (0 if number == -INT_MAX - 1 else abs(number)) % shards


def java_hash(text: str) -> int:
    """Java's String.hashCode: computed over UTF-16 code units, in 32 bits that wrap."""
    units = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8) + low) & _BITS_32
    return number if number <= INT_MAX else number - _BITS_32 - 1
