"""Clients of every kind against a classic group, and what must hold whatever they do.

Each client does what it likes at any time: joins in both steps or only in one, syncs, beats, forgets
what it was told (a crash), goes on with what it was told long ago (a zombie), or falls silent. The
coordinator crashes too. Time passes in steps of any size, so several timers may be due together.

    one assignment       what members of one generation are told of it comes from one leader's word
    no old generation    nobody is told success in a generation or under an id that is not the present one
    everybody answered   once time has passed, nobody who asked still waits
    nothing left behind  no timers of those who are gone; when all fall silent the group is Empty
    the log is enough    rebuilt from its records the group at rest is the same (in `check`, after each step)
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.protocol.messages.leave_group import MemberIdentity
from tests.unit.groups.classic.classic_support import EVER_S, ClassicGroupHarness, PendingRequest

PROTOCOLS = [
    [("range", b"1")],
    [("range", b"1"), ("sticky", b"2")],
    [("sticky", b"2"), ("range", b"1")],
    [("range", b"owned more")],
    [("own", b"")],
]
INSTANCES = {"static-1": "i1", "static-2": "i2", "static-1-again": "i1"}
NAMES = ["a", "b", "c", *INSTANCES]


class Client:
    """What a client believes, from the answers that it got."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance_id = INSTANCES.get(name)
        self.protocols = PROTOCOLS[0]
        self.joining_with = self.joined_with = PROTOCOLS[0]
        """What it said when it last joined, and what it had said when it was last taken in."""
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.told: list[str] = []
        """If it leads: who is in its generation."""
        self.asked: list[PendingRequest] = []
        self.past: list[tuple[str, int]] = []
        """Ids and generations that it had, for a zombie to use."""

    def forget(self) -> None:
        self.past.append((self.member_id, self.generation))
        self.member_id, self.generation, self.is_leader, self.told = "", -1, False, []
        self.asked = []


class ClassicGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = ClassicGroupHarness(members_max=4)
        self.clients = {name: Client(name) for name in NAMES}
        self.open: list[PendingRequest] = []
        """All that was asked since the last crash of the coordinator."""
        self.handed_in: dict[int, dict[str, bytes]] = {}
        """By generation, what its leader handed in. A generation that was lost in a crash may come again."""
        self.asked_in: dict[PendingRequest, int] = {}
        """The generation that a SyncGroup named."""
        self.words = 0

    @initialize(delay_ms=st.sampled_from([0, 3_000]), members_max=st.sampled_from([2, 4, 100]))
    def begin(self, delay_ms: int, members_max: int) -> None:
        self.harness = ClassicGroupHarness(members_max, delay_ms)

    # What clients do

    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([3, 5, 9]))
    def join(self, name: str, version: int) -> None:
        client = self.clients[name]
        instance_id = client.instance_id if version >= 5 else None
        asked = self.harness.join(
            name,
            client.member_id,
            instance_id,
            client.protocols,
            version,
            session_ms=10_000 if name != "b" else 30_000,
            rebalance_ms=60_000 if name != "c" else 5_000,
        )
        client.asked.append(asked)
        client.joining_with = client.protocols
        self.open.append(asked)
        self._read_answers(client)

    @rule(name=st.sampled_from(NAMES), forgets=st.booleans())
    def sync(self, name: str, forgets: bool) -> None:
        client = self.clients[name]
        asked = self._sync_as(client.member_id, client.generation, self._assignments(client, forgets))
        client.asked.append(asked)
        self._read_answers(client)

    def _sync_as(self, member_id: str, generation: int, assignments: dict[str, bytes]) -> PendingRequest:
        group = self.harness.group
        is_awaited = group.state is ClassicState.COMPLETING and member_id == group.leader
        asked = self.harness.sync(member_id, generation, assignments)
        self.open.append(asked)
        self.asked_in[asked] = generation
        if not asked.is_waiting and asked.code is ErrorCode.NONE:
            self._check_success(asked.code, member_id, generation)
            if is_awaited:
                assert generation not in self.handed_in, "a generation has one assignment"
                self.handed_in[generation] = assignments
        return asked

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        client = self.clients[name]
        code = self.harness.heartbeat(client.member_id, client.generation, client.instance_id)
        self._check_success(code, client.member_id, client.generation)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def beat_as_a_zombie(self, name: str, data: st.DataObject) -> None:
        past = self.clients[name].past
        if past:
            member_id, generation = data.draw(st.sampled_from(past))
            code = self.harness.heartbeat(member_id, generation)
            self._check_success(code, member_id, generation)
            self._sync_as(member_id, generation, {member_id: b"by a zombie"})

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients[name]
        self.harness.leave(client.member_id)
        assert client.member_id not in self.harness.group.members
        client.forget()

    @rule(instance_id=st.sampled_from(sorted(set(INSTANCES.values()))))
    def take_out_a_static_member(self, instance_id: str) -> None:
        self.harness.leave(MemberIdentity("", instance_id))
        assert instance_id not in self.harness.group.static_members

    @rule(name=st.sampled_from(NAMES), protocols=st.sampled_from(PROTOCOLS))
    def change_subscription(self, name: str, protocols: list[tuple[str, bytes]]) -> None:
        self.clients[name].protocols = protocols

    @rule(name=st.sampled_from(NAMES))
    def crash_of_a_client(self, name: str) -> None:
        self.clients[name].forget()

    # What else happens

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 5.0, 9.9, 10.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.advance(seconds)
        self._read_all()

    @rule(seconds=st.sampled_from([5.0, 30.0, 400.0]))
    def time_jumps(self, seconds: float) -> None:
        """The broker was held up: all that came due meanwhile is due at once."""
        self.harness.monotonic += seconds
        self.harness.expire()
        self._read_all()

    @rule()
    def crash_of_the_coordinator(self) -> None:
        self.harness.crash()
        self.open, self.asked_in = [], {}
        for client in self.clients.values():
            client.asked = []
        generation = self.harness.group.generation
        self.handed_in = {g: given for g, given in self.handed_in.items() if g <= generation}

    @rule(names=st.lists(st.sampled_from(NAMES[:5]), min_size=2, unique=True), rounds=st.integers(1, 4))
    def some_behave(self, names: list[str], rounds: int) -> None:
        for _ in range(rounds):
            for name in names:
                self._behave(self.clients[name])
            self.harness.advance(3)
            self._read_all()

    @rule()
    def two_behave(self) -> None:
        """While the others are silent, those who do as they are asked come to rest and know their part."""
        behaving = [self.clients["a"], self.clients["static-2"]]
        for client in behaving:
            client.protocols = PROTOCOLS[0]
            if client.joined_with == [("own", b"")]:
                # With nothing in common nobody goes over, as in Kafka: it has to be a member no more.
                client.forget()
        for _ in range(40):
            for client in behaving:
                self._behave(client)
            self.harness.advance(4)
            self._read_all()
            if self._are_at_rest(behaving):
                return
        raise AssertionError(f"{self.harness.group} did not come to rest")

    def _are_at_rest(self, clients: list[Client]) -> bool:
        group = self.harness.group
        is_stable = group.state is ClassicState.STABLE and not group.pending_syncs
        return is_stable and set(group.members) == {client.member_id for client in clients}

    def _behave(self, client: Client) -> None:
        self._read_answers(client)
        if any(asked.is_waiting for asked in client.asked):
            return
        code = self.harness.heartbeat(client.member_id, client.generation, client.instance_id)
        if code is ErrorCode.NONE:
            self.sync(client.name, False)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = (
                client.member_id if client.member_id in self.harness.group.pending_members else ""
            )
        if code is not ErrorCode.NONE:
            self.join(client.name, 9)

    # What must hold

    def teardown(self) -> None:
        """However it stands, if all fall silent nobody is left waiting and nobody is left at all."""
        self.harness.advance(EVER_S)
        assert not any(asked.is_waiting for asked in self.open)
        assert self.harness.group.state is ClassicState.EMPTY
        assert self.harness.timers() == {}

    @invariant()
    def nobody_learned_what_the_leader_did_not_say(self) -> None:
        group = self.harness.group
        given = self.handed_in.get(group.generation)
        if group.state is ClassicState.STABLE and given is not None:
            # A static member that came back has the word that its old self was given.
            words = set(given.values()) | {b""}
            assert {member.assignment for member in group.members.values()} <= words

    def _read_all(self) -> None:
        for client in self.clients.values():
            self._read_answers(client)

    def _read_answers(self, client: Client) -> None:
        while client.asked and not client.asked[0].is_waiting:
            asked = client.asked.pop(0)
            if hasattr(asked.reply, "generation_id"):
                self._read_join(client, asked)
            else:
                self._read_sync(client, asked)

    def _read_join(self, client: Client, asked: PendingRequest) -> None:
        reply = asked.reply
        if asked.code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif asked.code is ErrorCode.NONE:
            client.past.append((client.member_id, client.generation))
            assert reply.generation_id <= self.harness.group.generation
            client.member_id, client.generation = reply.member_id, reply.generation_id
            client.joined_with = client.joining_with
            client.is_leader = reply.leader == reply.member_id and not reply.skip_assignment
            client.told = [member.member_id for member in reply.members]
            assert bool(client.told) == (reply.leader == reply.member_id)
        elif asked.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()

    def _read_sync(self, client: Client, asked: PendingRequest) -> None:
        if asked.code is ErrorCode.NONE:
            given = self.handed_in[self.asked_in[asked]]
            assert asked.reply.assignment in {*given.values(), b""}
        elif asked.code is ErrorCode.UNKNOWN_MEMBER_ID:
            client.forget()

    def _assignments(self, client: Client, forgets: bool) -> dict[str, bytes]:
        """A different word each time, so that no two assignments can be taken for one another."""
        self.words += 1
        told = client.told[1:] if forgets else client.told
        return {member_id: b"%d for %d" % (self.words, n) for n, member_id in enumerate(told)}

    def _check_success(self, code: ErrorCode, member_id: str, generation: int) -> None:
        if code is ErrorCode.NONE:
            assert member_id in self.harness.group.members
            assert generation == self.harness.group.generation


TestClassicGroups = ClassicGroups.TestCase
TestClassicGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
