"""The subscribed topics of a consumer group: counters over its members, updated as members come and go.

Members subscribe by names, by a regular expression, or both. The matches of an expression are resolved now
and then, and kept. Many members have the same subscription, and many expressions match much the same
topics, so:

Rule 1: a topic is counted once for each distinct subscription that names it, and once for each expression
        in use that matches it. A member with a known subscription costs one lookup.
Rule 2: expressions with equal matches share one set, and all sets share their strings.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final, TypeVar

from penstock.groups.consumer.consumer_member import Subscription
from penstock.groups.consumer.regex import ResolvedRegularExpression
from penstock.groups.memory_estimates import text_memory, texts_memory

K = TypeVar("K")

_EXPRESSION_BYTES: Final = 500
_MATCH_BYTES: Final = 130
"""Estimated memory of a resolved expression beside its text and its matches, and of a match beside its
name."""
_NOTHING: Final[frozenset[str]] = frozenset()


class SubscribedTopics:
    def __init__(self) -> None:
        self.subscriptions: dict[Subscription, int] = {}
        """Number of members per subscription."""
        self.regex_users: dict[str, int] = {}
        self.regexes: dict[str, ResolvedRegularExpression] = {}
        """Resolved expressions; their records may precede those of the members that use them."""
        self._counts: dict[str, int] = {}
        self._text_bytes = 0
        self._regex_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Estimated memory, without the members' own strings."""
        # A dict does not shrink when its keys go: its size is asked for, and not estimated from their number.
        return self._counts.__sizeof__() + self._text_bytes + self._regex_bytes

    # Queries

    def all(self) -> frozenset[str]:
        return frozenset(self._counts)

    def topics_of_subscription(
        self, subscription: Subscription, resolved: Mapping[str, frozenset[str]]
    ) -> frozenset[str]:
        """Topics of a subscription. `resolved` takes precedence over the known matches of its expression."""
        names, regex = subscription
        matched = _NOTHING if regex is None else resolved.get(regex, self._known_topics(regex))
        return matched.union(names) if names else matched

    def topics_if(
        self, subscriptions: Set[Subscription], resolved: Mapping[str, frozenset[str]]
    ) -> frozenset[str]:
        """Topics as if these were all subscriptions. Only the difference to the current ones is computed."""
        counts: dict[str, int] = {}
        for gone in self.subscriptions.keys() - subscriptions:
            _add_all(counts, gone.names, -1)
        for new in subscriptions - self.subscriptions.keys():
            _add_all(counts, new.names, 1)
        regexes = {regex for _, regex in subscriptions if regex is not None}
        for regex in self.regex_users.keys() | regexes:
            before = self._known_topics(regex) if regex in self.regex_users else _NOTHING
            after = resolved.get(regex, self._known_topics(regex)) if regex in regexes else _NOTHING
            if before is not after:
                _add_all(counts, before, -1)
                _add_all(counts, after, 1)
        gone_names = {name for name, count in counts.items() if self._counts.get(name, 0) + count == 0}
        new_names = (name for name, count in counts.items() if count > 0)
        return (self.all() - gone_names).union(new_names) if counts else self.all()

    def _known_topics(self, regex: str) -> frozenset[str]:
        known = self.regexes.get(regex)
        return known.topics if known else _NOTHING

    def subscriptions_without(self, subscriptions: Iterable[Subscription]) -> set[Subscription]:
        """Distinct subscriptions of all members but the given ones."""
        left = dict(self.subscriptions)
        for subscription in subscriptions:
            left[subscription] -= 1
        return {subscription for subscription, count in left.items() if count}

    # Updates

    def count(self, subscription: Subscription, sign: int) -> None:
        """Count a subscription of a member, or remove one from the count."""
        if add(self.subscriptions, subscription, sign):
            self._count_topics(subscription.names, sign)
        regex = subscription.regex
        if regex is not None and add(self.regex_users, regex, sign):
            self._count_topics(self._known_topics(regex), sign)

    def resolve(self, regex: str, resolution: ResolvedRegularExpression | None) -> None:
        """Set the matches of an expression; None: drop them."""
        before = self._known_topics(regex)
        after = _NOTHING if resolution is None else self._shared(resolution.topics)
        if resolution is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolution._replace(topics=after)
        if regex in self.regex_users:
            # Added before subtracted: topics in both must not drop to zero.
            self._count_topics(after, 1)
            self._count_topics(before, -1)
        sets = {id(each.topics): len(each.topics) for each in self.regexes.values()}
        texts = _EXPRESSION_BYTES * len(self.regexes) + texts_memory(self.regexes)
        self._regex_bytes = texts + _MATCH_BYTES * sum(sets.values())

    def _shared(self, topics: frozenset[str]) -> frozenset[str]:
        for known in self.regexes.values():
            if known.topics == topics:
                return known.topics
        return frozenset(filter(topics.__contains__, self._counts)) | topics

    def _count_topics(self, names: Collection[str], sign: int) -> None:
        for name in names:
            if add(self._counts, name, sign):
                self._text_bytes += sign * text_memory(name)


def _add_all(counts: dict[str, int], names: Iterable[str], sign: int) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + sign


def add(counts: dict[K, int], key: K, sign: int) -> bool:
    """Add to a counter. True: the key was added or removed."""
    count = counts.get(key, 0) + sign
    if count:
        counts[key] = count
        return count == sign
    del counts[key]
    return True
