"""Programs that use the Python package, started as the workers of `gradrail run` or beside a parameter server."""
import json
import re
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


# Runs $PROGRAM for each case, with its variables. The classes of the package are the same in all cases.
CASES = """
import json, os
program, common = compile(os.environ["PROGRAM"], "program", "exec"), dict(os.environ)
for name, case in json.loads(os.environ["CASES"]).items():
    os.environ.clear()
    os.environ.update({**common, **case})
    print(f"case {name}", flush=True)
    exec(program, {"__name__": "__main__"})
    print(f"ended {name}", flush=True)
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

    def good_runs(self, program, cases, workers=2):
        """Runs the program once for each of `cases` (its variables by its name), with a server of its own. All runs of a
        worker are in one process: an import of torch takes a second. Returns the task of each worker."""
        hosts, ports = {}, cluster.free_ports(len(cases))
        for name in cases:
            ps_hosts = f"127.0.0.1:{ports.pop()}"
            worker_hosts = ",".join(f"localhost:{3000 + i}" for i in range(workers))
            self.train("--ps_hosts", ps_hosts, "--worker_hosts", worker_hosts, "--job_name", "ps", "--task_index", 0,
                       name=f"ps/0 of {name}")
            hosts[name] = {"GRADRAIL_PS_HOSTS": ps_hosts, "GRADRAIL_WORKER_HOSTS": worker_hosts}
        tasks = []
        for index in range(workers):
            runs = {name: {**case, **hosts[name]} for name, case in cases.items()}
            variables = {"PROGRAM": PREFIX + textwrap.dedent(program), "CASES": json.dumps(runs), "GRADRAIL_TASK_INDEX": str(index)}
            tasks.append(self.launch(f"worker/{index}", [cluster.python_with(*self.MODULES), "-c", CASES],
                                     self.environment(variables)))
        for task in tasks:
            self.assert_ends(task, cluster.GOOD, cluster.FINISH * len(cases))
            for name in cases:
                self.assertTrue(task.has(f"^ended {re.escape(name)}$"), task.transcript())
        return tasks

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
