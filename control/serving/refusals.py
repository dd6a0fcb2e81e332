"""Why a request gets no answer, in words for the client."""


class BadRequest(Exception):
    """A request that can't be answered; its text is for the client."""


class Overloaded(Exception):
    """So much waits already that another request would wait too long."""


class OutOfMemory(Exception):
    """A request for which the memory does not suffice."""

    def __str__(self) -> str:
        """For the client."""
        return "this request takes more memory than the server may use; send fewer or shorter rows per request"
