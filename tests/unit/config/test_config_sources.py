"""Flags over --set over the file over defaults, and every problem reported at once."""

import pytest

from penstock.config.broker import ClientAuth
from penstock.config.broker_settings import BROKER_SETTINGS
from penstock.config.kafka_settings import PROTECTIVE_SETTINGS, WITHOUT_EFFECT
from penstock.config.listeners import Address, SecurityProtocol
from penstock.config.sources import load
from penstock.errors import ConfigError


def problems(
    flags: dict[str, str | int | bool | None] | None = None,
    sets: tuple[str, ...] = (),
    file: str | None = None,
) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(flags or {}, sets, None if file is None else file.encode())
    return str(refused.value).split("\n")


def test_nothing_given_is_enough_to_start() -> None:
    broker = load()
    assert broker.listeners[0].port == 9092
    assert broker.given.static == {}


def test_flags_win_over_set_which_wins_over_the_file_which_wins_over_defaults() -> None:
    file = b'"node.id" = 2\n"broker.rack" = "file"\n"num.partitions" = 2\n"log.dirs" = "file"'
    sets = ["node.id=3", "broker.rack=set", "num.partitions=3"]
    broker = load({"node_id": 4, "rack": "flag", "data_dir": None}, sets, file)
    assert broker.node == (4, "flag", "file", "embedded")
    assert broker.topic_creation.partitions_default == 3
    assert broker.topic_creation.replication_factor_default == 1


def test_of_two_sets_of_one_key_the_later_counts() -> None:
    assert load(sets=["num.partitions=2", "num.partitions=5"]).topic_creation.partitions_default == 5


def test_every_flag_reaches_its_setting() -> None:
    broker = load(
        {
            "data_dir": "data",
            "kafka": "0.0.0.0:0",
            "http": "[::1]:0",
            "advertised": "broker.example:9092",
            "node_id": 7,
            "rack": "east",
            "metadata": "embedded",
            "insecure": True,
        }
    )
    assert broker.node == (7, "east", "data", "embedded")
    assert broker.listeners == (
        ("PLAINTEXT", SecurityProtocol.PLAINTEXT, "0.0.0.0", 0, "broker.example", 9092),
    )
    assert broker.http == Address("::1", 0)
    assert broker.insecure


def test_the_file_takes_toml_values_of_every_kind() -> None:
    file = b"""
        "auto.create.topics.enable" = false
        "log.cleanup.policy" = ["compact", "delete"]
        "log.cleaner.min.cleanable.ratio" = 0.25
        "log.retention.ms" = -1
        "log.flush.policy" = "os"
    """
    assert load(file=file).given.static == {
        "auto.create.topics.enable": "false",
        "log.cleanup.policy": "compact,delete",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.retention.ms": "-1",
        "log.flush.policy": "os",
    }


def test_each_part_of_the_broker_gets_its_values() -> None:
    sets = """socket.request.max.bytes=2000000 queued.max.request.bytes=3000000 max.connections=5
        max.connections.per.ip=4 connections.max.idle.ms=-1 fetch.max.bytes=2048 delete.topic.enable=false
        max.incremental.fetch.session.cache.slots=6 log.retention.check.interval.ms=7
        producer.id.expiration.ms=8 default.replication.factor=3 auto.create.topics.enable=false"""
    broker = load(sets=sets.split())
    assert broker.network == (2_000_000, 3_000_000, 5, 4, -1)
    assert broker.fetch == (2048, 6)
    assert broker.log == (7, 8)
    assert broker.topic_creation == (1, 3, False, False)


def test_broker_id_and_log_dir_are_other_names() -> None:
    assert load(sets=["broker.id=5", "log.dir=there"]).node == (5, None, "there", "embedded")
    assert problems(sets=("broker.id=5", "node.id=6")) == [
        "node.id = 6: broker.id = 5 is another name for it; set only one"
    ]


def test_an_unknown_key_is_refused_with_a_hint_and_its_source() -> None:
    assert problems(sets=("log.retention.mss=5",)) == [
        "unknown setting 'log.retention.mss'; did you mean 'log.retention.ms'? (from --set)"
    ]
    assert problems(file='"retention" = 5')[0].endswith("(from the config file)")


def test_a_bad_value_is_refused_with_its_source() -> None:
    assert problems({"node_id": "x"}, ("num.partitions=0",), '"log.retention.hours" = 1.5') == [
        "log.retention.hours = '1.5': must be an integer of at least -1 (from the config file)",
        "num.partitions = '0': must be an integer from 1 to 10000 (from --set)",
        "node.id = 'x': must be an integer of at least 0 (from --node-id)",
    ]


def test_all_problems_are_reported_together() -> None:
    found = problems(
        {"kafka": "nowhere", "http": "0.0.0.0:1"},
        ("=", "novalue", "queued.max.request.bytes=2000", "log.flush.policy=interval", "log.roll.ms=0"),
        '"log.dirs" = ["a", "b"]\n"ssl.client.auth" = "sometimes"',
    )
    assert [line.partition(":")[0] for line in found] == [
        "--set 'novalue'",
        "--kafka 'nowhere'",
        "log.dirs = 'a,b'",
        "ssl.client.auth = 'sometimes'",
        "unknown setting ''; `python -m penstock.config.reference` lists all (from --set)",
        "log.roll.ms = '0'",
        "socket.request.max.bytes = 104857600",
        "log.flush.policy = interval",
        "http.listener = '0.0.0.0",
    ]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b'"a" = "\xff"', "byte 8 is not UTF-8"),
        (b'"a" = ' + b"[" * 100_000, "a number is too long, or a list is nested too deeply"),
        (b'"a" = ' + b"9" * 5_000, "a number is too long, or a list is nested too deeply"),
    ],
    ids=["bytes", "brackets", "digits"],
)
def test_a_file_that_no_parser_takes_is_refused_in_words_for_its_author(file: bytes, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(file=file)
    assert str(refused.value) == f"the config file is not TOML: {reason}"


def test_a_file_that_is_not_toml_is_refused_with_the_place() -> None:
    (said,) = problems(file='"node.id" = \n')
    assert said.startswith("the config file is not TOML: ")
    assert "line 1" in said
    with pytest.raises(ConfigError, match="is not TOML"):
        load(file=b"\xff")


def test_a_key_without_quotes_is_refused_with_the_remedy() -> None:
    assert problems(file="log.retention.ms = 5") == [
        'log.retention.ms: put the whole key in quotes ("a.b" = 1) (from the config file)'
    ]


@pytest.mark.parametrize("value", ["[1, 2]", "2020-01-01", "[[]]"])
def test_a_toml_value_no_setting_can_have_is_refused(value: str) -> None:
    (said,) = problems(file=f'"node.id" = {value}')
    assert said == "node.id: must be a text, a number, true, false or a list of texts (from the config file)"


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (
            ["queued.max.request.bytes=1048576"],
            "socket.request.max.bytes = 104857600: must be at most queued.max.request.bytes = 1048576:"
            " a request has to fit what all requests share",
        ),
        (
            ["log.cleaner.min.compaction.lag.ms=2", "log.cleaner.max.compaction.lag.ms=1"],
            "log.cleaner.min.compaction.lag.ms = 2: must be at most log.cleaner.max.compaction.lag.ms = 1:"
            " records are cleaned between",
        ),
        (
            ["log.flush.policy=interval"],
            "log.flush.policy = interval: needs log.flush.interval.ms or log.flush.interval.messages",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sets: list[str], sentence: str) -> None:
    assert problems(sets=tuple(sets)) == [sentence]


@pytest.mark.parametrize(
    ("setting", "warning"),
    [
        (
            "message.max.bytes=104857601",
            "message.max.bytes = 104857601: without effect above socket.request.max.bytes = 104857600:"
            " a larger batch does not fit a request",
        ),
        (
            "log.segment.bytes=1048576",
            "message.max.bytes = 1048588: without effect above log.segment.bytes = 1048576:"
            " a larger batch does not fit a segment",
        ),
        (
            "offsets.topic.replication.factor=3",
            "offsets.topic.replication.factor: a setting of Kafka without effect here:"
            " __consumer_offsets follows default.replication.factor (from --set)",
        ),
        (
            "num.io.threads=8",
            "num.io.threads: a setting of Kafka without effect here (from --set)",
        ),
        (
            "listener.name.ssl.ssl.principal.mapping.rules=DEFAULT",
            "listener.name.ssl.ssl.principal.mapping.rules: a setting of Kafka without effect here"
            " (from --set)",
        ),
        (
            "zookeeper.connect=localhost:2181",
            "zookeeper.connect: a setting of Kafka without effect here (from --set)",
        ),
        (
            "security.inter.broker.protocol=PLAINTEXT",
            "security.inter.broker.protocol: a setting of Kafka without effect here (from --set)",
        ),
    ],
)
def test_what_kafka_takes_and_has_no_effect_here_warns(setting: str, warning: str) -> None:
    assert load(sets=[setting]).warnings == (warning,)


def test_settings_with_an_effect_do_not_warn() -> None:
    assert load(sets=["log.retention.ms=5"]).warnings == ()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("authorizer.class.name=a.b.C", "there is no authorizer"),
        (
            "security.inter.broker.protocol=SSL",
            "brokers connect to each other by the listeners that they have",
        ),
        ("ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "TLS is Python's"),
        ("listener.name.ssl.ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "TLS is Python's"),
    ],
)
def test_a_protection_that_is_not_there_stops_the_start(setting: str, reason: str) -> None:
    (said,) = problems(sets=(setting,))
    name = setting.partition("=")[0]
    assert said.startswith(f"{name}: a setting of Kafka that this broker does not have: {reason}")
    assert load(sets=[f"{name}="]).warnings, "an empty one protects nothing"


def test_brokers_replicate_only_by_the_listener_that_is_named() -> None:
    listeners = "listeners=OUT://127.0.0.1:9092,IN://127.0.0.1:9093"
    protocols = "listener.security.protocol.map=OUT:PLAINTEXT,IN:PLAINTEXT"
    (said,) = problems(sets=(listeners, protocols, "inter.broker.listener.name=IN"))
    assert "brokers connect to each other by the first of listeners" in said
    assert load(sets=[listeners, protocols, "inter.broker.listener.name=OUT"]).warnings


def test_no_setting_of_this_broker_is_listed_as_one_that_it_lacks() -> None:
    assert not (WITHOUT_EFFECT | PROTECTIVE_SETTINGS.keys()) & BROKER_SETTINGS.keys()
    assert not WITHOUT_EFFECT & PROTECTIVE_SETTINGS.keys()


def test_the_largest_batch_may_be_as_large_as_a_request_and_a_segment() -> None:
    sets = ["message.max.bytes=2000000", "socket.request.max.bytes=2000000", "log.segment.bytes=2000000"]
    assert load(sets=sets).topic_defaults.batch_bytes_max == 2_000_000


@pytest.mark.parametrize("interval", ["log.flush.interval.ms=5", "log.flush.scheduler.interval.ms=5"])
def test_flushing_at_intervals_needs_an_interval(interval: str) -> None:
    assert load(sets=["log.flush.policy=interval", interval]).topic_defaults.flush_ms == 5


def test_another_store_than_those_there_are_is_refused() -> None:
    (said,) = problems({"metadata": "zookeeper://one:2181"})
    assert said == (
        "metadata.store = 'zookeeper://one:2181': must be 'embedded' or etcd://host:port,..."
        " (from --metadata)"
    )


def test_in_a_cluster_topics_get_as_many_replicas_as_are_safe() -> None:
    store = {"metadata": "etcd://one:2379"}
    assert load(store).topic_creation.replication_factor_default == -1
    chosen = load(store, ["default.replication.factor=1"])
    assert chosen.topic_creation.replication_factor_default == 1
    assert load().topic_creation.replication_factor_default == 1


def test_listening_beyond_this_machine_is_refused_unless_allowed() -> None:
    (said,) = problems({"kafka": "192.0.2.1:9092"})
    assert said.startswith("listeners = 'PLAINTEXT://192.0.2.1:9092': is open to other machines")
    assert load({"kafka": "192.0.2.1:9092", "insecure": True}).listeners[0].host == "192.0.2.1"


def test_the_advertised_flag_is_for_listeners_of_any_source() -> None:
    file = b'"listeners" = "TLS://0.0.0.0:9093"\n"ssl.keystore.location" = "key.pem"'
    (listener,) = load({"advertised": "broker.example"}, file=file).listeners
    assert (listener.name, listener.advertised_host, listener.advertised_port) == ("TLS", "broker.example", 0)
    assert listener.bound_to(9093).advertised_port == 9093
    assert problems({"advertised": "a b"}) == [
        "--advertised 'a b': must be host or host:port, the port a number from 0 to 65535"
    ]


@pytest.mark.parametrize("flag", ["kafka", "http"])
@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:http", "127.0.0.1", ""])
def test_a_flag_that_is_no_address_is_named_with_what_a_port_may_be(flag: str, address: str) -> None:
    assert problems({flag: address}) == [
        f"--{flag} {address!r}: must be host:port, the port a number from 0 to 65535"
    ]


@pytest.mark.parametrize("http", ["127.0.0.1:9092", "0.0.0.0:9092"])
def test_http_and_kafka_cannot_share_an_address(http: str) -> None:
    (problem,) = problems({"kafka": "127.0.0.1:9092", "http": http, "insecure": True})
    assert (
        problem == f"http.listener = '{http}': listener PLAINTEXT is on 127.0.0.1:9092; give one another port"
    )
    assert load({"kafka": "127.0.0.1:0", "http": "127.0.0.1:0"}).http.port == 0


TLS = (
    "listeners=TLS://127.0.0.1:9093,INSIDE://127.0.0.1:9094",
    "listener.security.protocol.map=TLS:SSL,INSIDE:SSL",
)


def test_one_listeners_tls_settings_win_over_those_of_all() -> None:
    broker = load(
        sets=[
            *TLS,
            "ssl.keystore.location=all.pem",
            "ssl.key.password=secret",
            "ssl.truststore.location=trust.pem",
            "listener.name.tls.ssl.keystore.location=tls.pem",
            "listener.name.tls.ssl.client.auth=required",
            "listener.name.tls.ssl.enabled.protocols=TLSv1.3",
        ]
    )
    assert broker.tls == {
        "TLS": ("tls.pem", "secret", "trust.pem", ClientAuth.REQUIRED, ("TLSv1.3",)),
        "INSIDE": ("all.pem", "secret", "trust.pem", ClientAuth.NONE, ("TLSv1.2", "TLSv1.3")),
    }


def test_a_tls_listener_needs_its_files() -> None:
    found = problems(sets=(*TLS, "listener.name.tls.ssl.keystore.location=a", "ssl.client.auth=required"))
    assert found == [
        "ssl.client.auth = required: TLS needs ssl.truststore.location to check with",
        "listeners: INSIDE uses TLS and needs ssl.keystore.location, a PEM file with the private key and the"
        " certificate chain",
        "ssl.client.auth = required: INSIDE needs ssl.truststore.location to check with",
    ]


def test_a_plaintext_listener_has_no_tls() -> None:
    assert load(sets=["ssl.keystore.location=a"]).tls == {}


def test_settings_for_a_listener_that_does_not_exist_are_refused() -> None:
    (said,) = problems(sets=("listener.name.TLS.ssl.keystore.location=a",))
    assert said.startswith("listener.name.TLS.ssl.keystore.location: no listener is called 'TLS'")


def test_a_flag_nobody_declared_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        load({"data-dir": "x"})
