"""Addresses of databases are understood as libpq does, and their passwords are in no message."""

import psycopg
import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.etl import database, postgres
from penstock.spark.pipelines.etl.address import (
    InvalidAddress,
    postgres_settings,
    with_variables,
    without_password,
)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:word@db:5432/shop",
        "postgres://me@db",
        "postgresql:///shop?user=me&password=s%26t&host=/tmp",
        "postgresql://me:a%2Fb%40c%3Ad@db/shop?sslmode=require&connect_timeout=3",
        "postgresql://a:1,b,c:3/shop",
        "postgresql://[::1]:5433/shop",
        "postgresql://%2Fvar%2Frun/shop",
        "postgresql://me:s3?cret@db/shop",
        "postgresql://db/shop?ssl=true",
        "postgresql://",
    ],
)
def test_an_address_is_understood_as_libpq_does(url: str) -> None:
    theirs = psycopg.conninfo.conninfo_to_dict(url)
    assert postgres_settings(url) == {name: str(value) for name, value in theirs.items() if value}


@pytest.mark.parametrize(
    "url",
    [
        "postgres:/me:s3cret@127.0.0.1/db",
        "postgresql://me:s3/cret@127.0.0.1:1/db",
        "postgresql://me:53/cret@127.0.0.1:1/db",
        "postgresql://me:s3@cret@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:port/db",
        "postgresql://me:s3%zzcret@127.0.0.1/db",
        "postgresql://me:s3cret%00@127.0.0.1/db",
        "postgresql://me:s3cret@127.0.0.1:1/db?bad=1",
        "postgresql://me@127.0.0.1:1/db?password=s3&cret=2",
        "postgresql://me@127.0.0.1:1/db?password=s3=cret",
        "postgresql://127.0.0.1:1/db?password=s3@cret",
        "postgresql:///db?user=me&password=s3cret&port=zz",
        "host=127.0.0.1 port=1 password=s3cret user=u",
        "postgresql://me:s3cret@127.0.0.1:1/db",
    ],
)
def test_no_message_has_a_piece_of_a_password(url: str) -> None:
    assert "cret" not in without_password(url)
    for connect in (postgres.connection, database.connect):
        with pytest.raises(CommandFailed) as refused:
            connect(url)
        assert "cret" not in str(refused.value)
        assert "cret" not in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:p%40ss@db:5432/shop", "postgresql://me@db:5432/shop"),
        ("postgresql://me:p@ss@db:5432/shop", "postgresql://..."),
        ("postgresql://db/shop?password=x@y", "postgresql://db/shop"),
        ("sqlite:////data/shop.db", "sqlite:////data/shop.db"),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("password", ["plain", "a/b@c:d?e#f&g%h", "%41", "ü ß", "[x]"])
@pytest.mark.parametrize(
    "template", ["postgresql://me:${WORD}@db/shop", "postgresql://db/shop?password=${WORD}"]
)
def test_a_password_of_the_environment_may_have_any_signs(template: str, password: str) -> None:
    url = with_variables(template, {"WORD": password})
    assert postgres_settings(url)["password"] == password
    assert psycopg.conninfo.conninfo_to_dict(url)["password"] == password


def test_a_variable_may_stand_for_a_place_or_for_the_whole_address() -> None:
    whole = "postgresql://me:a%2Fb@db/shop"
    assert with_variables("${ALL}", {"ALL": whole}) == whole
    assert with_variables("postgresql://me@${AT}/shop", {"AT": "db:5433"}) == "postgresql://me@db:5433/shop"
    assert with_variables("sqlite:///${FILE}", {"FILE": "/a b@c/x.db"}) == "sqlite:////a b@c/x.db"


def test_the_remedy_is_told() -> None:
    with pytest.raises(InvalidAddress, match=r"too many\. Write it as .* in a name or a password as %2F %40"):
        postgres_settings("postgresql://me:a/b@db/shop")
