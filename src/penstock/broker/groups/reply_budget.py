"""Byte limit for replies about groups, because a short request can have a very long reply."""

from penstock.errors import ApiError, ErrorCode
from penstock.limits import GROUP_REPLY_BYTES_MAX


class ReplyBudget:
    """Remaining bytes of one reply. Each part of the reply takes its bytes as it is built."""

    def __init__(self) -> None:
        self._left_bytes = GROUP_REPLY_BYTES_MAX

    def take(self, size_bytes: int) -> None:
        """Take bytes from the budget. ApiError if it is exceeded, and then for every later part too.

        Of the error codes that clients know, POLICY_VIOLATION is the clearest sign not to retry.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            detail = f"the reply would be larger than {GROUP_REPLY_BYTES_MAX} bytes: ask for less at once"
            raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
