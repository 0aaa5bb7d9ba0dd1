"""How large a reply about groups may become: a short question can have a very long answer."""

from penstock.errors import ApiError, ErrorCode
from penstock.limits import GROUP_REPLY_BYTES_MAX


class ReplyBudget:
    """Of one reply; its parts take from it in the order in which they are made."""

    __slots__ = ("_left_bytes",)

    def __init__(self) -> None:
        self._left_bytes = GROUP_REPLY_BYTES_MAX

    def take(self, size_bytes: int) -> None:
        """ApiError if there is not so much left; then there is nothing left for the rest either.

        Of the codes that clients know, this one says best that asking again will not help.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            detail = f"the reply would be larger than {GROUP_REPLY_BYTES_MAX} bytes: ask for less at once"
            raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
