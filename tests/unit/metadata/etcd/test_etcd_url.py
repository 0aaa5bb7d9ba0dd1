"""The address of etcd, as people write it."""

import pytest

from penstock.errors import ConfigError
from penstock.metadata.etcd.url import EtcdTls, EtcdUrl, parse_etcd_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd://one", EtcdUrl(("one:2379",))),
        ("etcd://one:1,two:2,one:1", EtcdUrl(("one:1", "two:2"))),
        ("etcd://[::1]:23,[::2]", EtcdUrl(("[::1]:23", "[::2]:2379"))),
        ("etcd://one/staging/", EtcdUrl(("one:2379",), root="/staging")),
        ("etcd://u:p%40%2F%3A@one", EtcdUrl(("one:2379",), user="u", password="p@/:")),
        ("etcd://u@one", EtcdUrl(("one:2379",), user="u")),
        ("etcd://one?tls=true", EtcdUrl(("one:2379",), tls=EtcdTls())),
        ("etcd://one?tls=false", EtcdUrl(("one:2379",))),
        ("etcd://one?ca=/a.pem", EtcdUrl(("one:2379",), tls=EtcdTls("/a.pem"))),
        ("etcd://one?cert=c&key=k", EtcdUrl(("one:2379",), tls=EtcdTls(None, "c", "k"))),
    ],
)
def test_an_address_is_taken_apart(text: str, expected: EtcdUrl) -> None:
    assert parse_etcd_url(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://one", "etcd://host:port"),
        ("etcd://", "names no host"),
        ("etcd://one,,two", "names no host"),
        ("etcd://:2379", "names no host"),
        ("etcd://one:http", "no port"),
        ("etcd://one:70000", "no port"),
        ("etcd://::1", "brackets"),
        ("etcd://:secret@one", "user is missing"),
        ("etcd://one/a//b", "root of the keys"),
        ("etcd://one?timeout=1", "timeout"),
        ("etcd://one?ca=a&ca=b", "twice"),
        ("etcd://one?ca=", "no value"),
        ("etcd://one?tls=yes", "true or false"),
        ("etcd://one?tls=false&ca=a", "leave out"),
        ("etcd://one?cert=c", "go together"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_etcd_url(text)


def test_nobody_is_shown_the_password() -> None:
    url = parse_etcd_url("etcd://user:secret@one,two/root")
    assert f"{url} {url!r}" == "EtcdUrl(one:2379,two:2379/root) EtcdUrl(one:2379,two:2379/root)"


def test_tls_decides_how_the_members_are_asked() -> None:
    assert parse_etcd_url("etcd://one:1,two:2").base_urls == ("http://one:1", "http://two:2")
    assert parse_etcd_url("etcd://one:1?tls=true").base_urls == ("https://one:1",)
