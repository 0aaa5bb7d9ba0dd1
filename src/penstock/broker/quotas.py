"""Client quotas. The router calls `charge` for every request before its handler."""

from typing import Protocol

from penstock.broker.context import RequestContext


class Quotas(Protocol):
    def charge(self, context: RequestContext, api_key: int, request_bytes: int) -> int:
        """Count a request. Returns the milliseconds that its connection must pause; 0 within the quota."""
        ...


class NoQuotas:
    def charge(self, context: RequestContext, api_key: int, request_bytes: int) -> int:
        return 0
