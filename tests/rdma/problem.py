"""Errors that end a run of the lab with one message instead of a traceback."""


class Problem(Exception):
    """An error that the user must correct. The text states the object, the cause and the remedy."""


class GuestLost(Problem):
    """One guest stopped or does not answer. The jobs of the other guests are not the cause."""

    def __init__(self, role, text):
        super().__init__(text)
        self.role = role


class CannotRun(Exception):
    """This machine cannot run the lab. The result is a skip, or a failure if GRADRAIL_REQUIRE names rdma."""
