"""`python -m tools.compat.served`: writes the table of APIs into docs/compatibility.md.

The table is a broker's response to ApiVersions, with the names from the message tables. A test compares the
page with a broker.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.protocol.apis import APIS
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from penstock.testing import broker
from tools.differential.wire import Connection

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
_BEGIN, _END = "<!-- served: begin -->", "<!-- served: end -->"
_VERSION = 3
_REPLY_S_MAX = 5.0

Range = tuple[int, int, int]
"""Api key, oldest version, newest version."""


def advertised(address: str) -> list[Range]:
    """The APIs in the ApiVersions response of the broker at host:port."""
    host, port = address.rsplit(":", 1)
    request = ApiVersionsRequest(client_software_name="compat", client_software_version="1")
    frame = b"".join(encode_request(API_VERSIONS, _VERSION, 1, "compat", request))
    with Connection(host, int(port)) as connection:
        _, reply = decode_response(API_VERSIONS, _VERSION, connection.exchange(frame, _REPLY_S_MAX))
    return [(api.api_key, api.min_version, api.max_version) for api in reply.api_keys]


def table(ranges: Iterable[Range]) -> str:
    rows = [_row(*each) for each in sorted(ranges)]
    return "\n".join(["| Api key | API | Versions |", "|--:|---|---|", *rows])


def _row(key: int, oldest_advertised: int, newest: int) -> str:
    oldest = APIS[key].versions[0]
    remark = "" if oldest == oldest_advertised else f" ({oldest_advertised} to {newest} is advertised)"
    versions = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
    return f"| {key} | {APIS[key].name} | {versions}{remark} |"


def table_in(page: str) -> str:
    """The rows of the table in the page."""
    return page.partition(_BEGIN)[2].partition(_END)[0].strip()


def with_table(page: str, new: str) -> str:
    assert page.count(_BEGIN) == page.count(_END) == 1, "the page marks where the table goes"
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{new}\n{_END}{rest.partition(_END)[2]}"


def main() -> int:
    with broker() as running:
        PAGE.write_text(with_table(PAGE.read_text(), table(advertised(running.bootstrap))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
