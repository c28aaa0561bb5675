"""The exceptions of gradrail. Each has the code and the text of the C library (gradrail/gradrail.h)."""
import re


class Error(Exception):
    """A call failed. `code` is the number of gradrail_status; the text names object, cause and remedy."""

    code = 2

    def __init__(self, text: str, code: "int | None" = None):
        super().__init__(text)
        if code is not None:
            self.code = code


class Cancelled(Error):
    """The call was ended by a request to stop."""

    code = 1


class InvalidArgument(Error, ValueError):
    """An option, a name, a shape or a dtype is not permitted."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """A task did not start, or did not answer, within its time limit."""

    code = 4


class AlreadyExists(Error):
    """Another process runs with this task index."""

    code = 6


class ResourceExhausted(Error, MemoryError):
    """Memory or descriptors are exhausted; the text names the limit."""

    code = 8


class FailedPrecondition(Error):
    """Options or tensors differ from those of the other workers, or a call is out of order."""

    code = 9


class Aborted(Error):
    """The run was aborted; the text has the reason."""

    code = 10


class Internal(Error):
    """A defect of gradrail."""

    code = 13


class Unavailable(Error, ConnectionError):
    """A parameter server was lost. A new run can succeed."""

    code = 14


class DataLoss(Error):
    """A checkpoint or a transfer is damaged; the text names it."""

    code = 15


_BY_CODE = {
    kind.code: kind
    for kind in (Cancelled, InvalidArgument, DeadlineExceeded, AlreadyExists, ResourceExhausted, FailedPrecondition,
                 Aborted, Internal, Unavailable, DataLoss)
}


def error_of(code: int, text: str) -> Error:
    """Returns the exception of a code of the C library."""
    # Functions have the names of C there.
    return _BY_CODE.get(code, Error)(re.sub(r"\bgradrail_([a-z_]+)\b", r"\1()", text), code)
