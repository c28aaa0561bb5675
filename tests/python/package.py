"""Programs that use the Python package, started as the workers of `gradrail run` or beside a parameter server."""
import textwrap

import cluster

PREFIX = """
import faulthandler, os, signal, sys, threading, time
import numpy as np
import gradrail
faulthandler.enable()

def refused(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!r}"
        assert kind is AttributeError or isinstance(error, gradrail.Error) and error.code == kind.code, repr(error)
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
"""


class PackageTest(cluster.ClusterTest):
    MODULES = ("numpy",)

    def command(self, program):
        return [cluster.python_with(*self.MODULES), "-c", PREFIX + textwrap.dedent(program)]

    def environment(self, more):
        # The cluster of the tests' own environment must not reach the programs.
        return {**cluster.python_environment(), "GRADRAIL_PS_HOSTS": "", **(more or {})}

    def run_workers(self, program, *flags, workers=2, environment=None):
        """Starts the program as each worker of `gradrail run`."""
        command = [cluster.binary(), "run", "--workers", str(workers), *map(str, flags), "--", *self.command(program)]
        return self.launch("run", command, self.environment(environment))

    def good_run(self, program, *flags, workers=2, within=cluster.FINISH, environment=None):
        """Runs the program as each worker; each must end without an error. Returns the task of `gradrail run`."""
        task = self.run_workers(program, *flags, workers=workers, environment=environment)
        self.assert_ends(task, cluster.GOOD, within)
        return task

    def start_server(self, workers=2, *more_flags):
        """Starts a parameter server. Returns its task, and the environment of worker `index`."""
        flags = self.addresses(workers)
        server = self.train(*flags, *more_flags, "--job_name", "ps", "--task_index", 0, name="ps/0")
        hosts = dict(zip(flags[::2], flags[1::2]))

        def environment(index):
            return {"GRADRAIL_PS_HOSTS": hosts["--ps_hosts"], "GRADRAIL_WORKER_HOSTS": hosts["--worker_hosts"],
                    "GRADRAIL_TASK_INDEX": str(index)}

        return server, environment

    def start_program(self, program, environment=None, name="worker"):
        return self.launch(name, self.command(program), self.environment(environment))
