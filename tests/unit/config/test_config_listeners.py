"""Where clients connect, what they are told, and what is too dangerous to offer by accident."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.listeners import (
    Address,
    Listener,
    SecurityProtocol,
    advertise,
    parse_address,
    parse_http,
    parse_listeners,
)
from penstock.errors import ConfigError

MAP = ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "TLS:SSL", "SASL_SSL:SASL_SSL", "INSIDE:PLAINTEXT")
PLAINTEXT, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL


def parse(listeners: str, advertised: str = "", *, insecure: bool = False) -> tuple[Listener, ...]:
    told = advertised.split(",") if advertised else ()
    return parse_listeners(listeners.split(","), told, MAP, insecure=insecure)


def refusal(listeners: str, advertised: str = "", *, insecure: bool = False) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(listeners, advertised, insecure=insecure)
    return str(refused.value)


def test_a_listener_on_this_machine_advertises_itself() -> None:
    assert parse("PLAINTEXT://127.0.0.1:9092") == (
        Listener("PLAINTEXT", PLAINTEXT, "127.0.0.1", 9092, "127.0.0.1", 9092),
    )


def test_several_listeners_keep_their_order_and_their_own_advertised_address() -> None:
    found = parse("tls://0.0.0.0:9093,INSIDE://localhost:9092", "TLS://broker.example:443")
    assert found == (
        Listener("TLS", SSL, "0.0.0.0", 9093, "broker.example", 443),
        Listener("INSIDE", PLAINTEXT, "localhost", 9092, "localhost", 9092),
    )


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert parse("PLAINTEXT://[::1]:9092")[0].host == "::1"
    assert parse("SSL://[2001:db8::7]:9092")[0].advertised_host == "2001:db8::7"
    assert str(Address("::1", 80)) == "[::1]:80"
    assert parse_address("::1:80") is None


def test_port_zero_is_known_once_it_is_bound() -> None:
    (listener,) = parse("PLAINTEXT://127.0.0.1:0")
    assert listener.bound_to(41_234)[2:] == ("127.0.0.1", 41_234, "127.0.0.1", 41_234)
    (told,) = parse("PLAINTEXT://127.0.0.1:0", "PLAINTEXT://localhost:9092")
    assert told.bound_to(41_234).advertised_port == 9092


def test_several_listeners_may_each_take_any_free_port() -> None:
    assert len(parse("PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0")) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]", "0", ""])
def test_listening_on_every_address_needs_an_advertised_one(host: str) -> None:
    said = refusal(f"PLAINTEXT://{host}:9092", insecure=True)
    assert "clients cannot connect to" in said
    assert "--advertised host:port" in said
    assert parse(f"PLAINTEXT://{host}:9092", "PLAINTEXT://me:1", insecure=True)[0].advertised_host == "me"


def test_every_address_is_nothing_to_advertise() -> None:
    assert "name an address or a host" in refusal("SSL://0.0.0.0:9092", "SSL://0.0.0.0:9092")


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "broker.example", "127.evil.example", "[2001:db8::1]", "[::2]"]
)
def test_a_listener_beyond_this_machine_needs_tls_or_consent(host: str) -> None:
    assert "--insecure" in refusal(f"PLAINTEXT://{host}:9092")
    assert parse(f"PLAINTEXT://{host}:9092", insecure=True)
    assert parse(f"SSL://{host}:9092")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "[::1]"])
def test_a_listener_on_this_machine_needs_no_consent(host: str) -> None:
    assert parse(f"PLAINTEXT://{host}:9092")
    assert parse_http(f"{host}:8080", insecure=False)


def test_http_beyond_this_machine_needs_consent() -> None:
    with pytest.raises(ConfigError, match=r"http\.listener = '0\.0\.0\.0:8080': is open to other machines"):
        parse_http("0.0.0.0:8080", insecure=False)
    assert parse_http("0.0.0.0:8080", insecure=True) == Address("0.0.0.0", 8080)
    with pytest.raises(ConfigError, match=r"http\.listener = 'web': must be host:port"):
        parse_http("web", insecure=True)


def test_listeners_with_users_are_refused_for_now() -> None:
    assert refusal("SASL_SSL://127.0.0.1:9092") == (
        "listeners = 'SASL_SSL://127.0.0.1:9092': SASL_SSL comes with users, which are not supported yet;"
        " use PLAINTEXT or SSL"
    )


def test_a_name_without_a_protocol_is_refused_with_the_remedy() -> None:
    assert "add OUTSIDE:PLAINTEXT or OUTSIDE:SSL" in refusal("OUTSIDE://127.0.0.1:9092")


def test_names_and_addresses_are_used_once() -> None:
    assert "the name PLAINTEXT is used twice" in refusal("PLAINTEXT://127.0.0.1:1,plaintext://127.0.0.1:2")
    assert "the same address as listener PLAINTEXT" in refusal("PLAINTEXT://127.0.0.1:1,INSIDE://127.0.0.1:1")


def test_an_advertised_listener_must_exist() -> None:
    assert "no listener is called TLS" in refusal("PLAINTEXT://127.0.0.1:1", "TLS://a:1")


@pytest.mark.parametrize(
    "entry",
    ["9092", "127.0.0.1:9092", "PLAINTEXT://127.0.0.1", "PLAINTEXT://127.0.0.1:65536", "PLAINTEXT://::1:9092",
     "PLAINTEXT://host name:1", "PLAIN TEXT://h:1", "://h:1", "PLAINTEXT://127.0.0.1:-1", "PLAINTEXT://a/b:1"],
)  # fmt: skip
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    assert (
        refusal(entry)
        == f"listeners = {entry!r}: must be NAME://host:port, the port a number from 0 to 65535"
    )


def test_a_protocol_map_of_another_form_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_listeners(["A://127.0.0.1:1"], [], ["A:PLAINTEXT", "A:SSL", "B:HTTP", "C"])
    assert [line.partition(": ")[2] for line in str(refused.value).split("\n")] == [
        "A was already given PLAINTEXT",
        "must be NAME:PLAINTEXT or NAME:SSL",
        "must be NAME:PLAINTEXT or NAME:SSL",
    ]


def test_all_problems_are_reported_together() -> None:
    said = refusal("PLAINTEXT://0.0.0.0:1,nonsense,SASL_SSL://127.0.0.1:2", "TLS://a:1")
    assert len(said.split("\n")) == 4


def test_the_advertised_flag_is_for_the_only_listener() -> None:
    assert advertise("broker.example:443", ["TLS://0.0.0.0:9093"]) == "TLS://broker.example:443"
    assert advertise("broker.example", ["TLS://0.0.0.0:9093"]) == "TLS://broker.example:0"
    with pytest.raises(ConfigError, match="there are 2 listeners; say which is meant"):
        advertise("a:1", ["PLAINTEXT://127.0.0.1:1", "TLS://127.0.0.1:2"])
    with pytest.raises(ConfigError, match="must be host or host:port"):
        advertise("a:b", ["TLS://127.0.0.1:2"])


@given(
    st.lists(
        st.text(max_size=30) | st.from_regex(r"[A-Z]{1,3}://[0-9a-z.:\[\]]{0,12}:[0-9]{1,5}", fullmatch=True)
    )
)
def test_any_text_gives_listeners_or_a_config_error(entries: list[str]) -> None:
    try:
        listeners = parse_listeners(entries, entries, entries, insecure=True)
    except ConfigError:
        return
    assert len(listeners) == len(entries)
