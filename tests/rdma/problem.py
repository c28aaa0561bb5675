"""Errors that end a run of the lab with a sentence instead of a traceback."""


class Problem(Exception):
    """Something is wrong that a person has to put right: the text names the thing, the cause and the remedy."""


class GuestLost(Problem):
    """One guest stopped or does not answer. The jobs of the other guests are not the cause."""

    def __init__(self, role, text):
        super().__init__(text)
        self.role = role


class CannotRun(Exception):
    """This machine cannot run the lab: a skip, or a failure where GRADRAIL_REQUIRE names rdma."""
