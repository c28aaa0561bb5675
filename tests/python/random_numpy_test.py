"""Random programs of the NumPy client agree bit for bit with plain NumPy (random_numpy.py).

GRADRAIL_RANDOM_PROGRAMS=1000 runs more than usual, and GRADRAIL_TEST_SEED=N others. A failure prints the seed, the number
and the text of its program; GRADRAIL_RANDOM_PROGRAMS_FIRST=NUMBER begins with it.
"""
import json
import os
import pathlib
import random
import unittest

import cluster
import package

COUNT = int(os.environ.get("GRADRAIL_RANDOM_PROGRAMS", "50"))
FIRST = int(os.environ.get("GRADRAIL_RANDOM_PROGRAMS_FIRST", "0"))
SECONDS = 60 + COUNT  # a program takes a tenth of a second
PORTS = 4  # two programs at a time, with at most two servers


class RandomPrograms(package.PackageTest):
    def test_programs_agree_with_numpy(self):
        seed = os.environ.get("GRADRAIL_TEST_SEED") or str(random.randrange(1 << 32))
        print(f"GRADRAIL_TEST_SEED={seed}", flush=True)
        script = pathlib.Path(__file__).with_name("random_numpy.py")
        task = self.launch("programs", [cluster.python_with("numpy"), str(script)], self.environment({
            "PROGRAMS_SEED": seed, "PROGRAMS_FIRST": str(FIRST), "PROGRAMS_COUNT": str(COUNT),
            "PROGRAMS_PORTS": json.dumps(cluster.free_ports(PORTS))}))
        self.assert_ends(task, cluster.GOOD, SECONDS * cluster.PATIENCE, says=[f"{COUNT} of {COUNT} programs agree"])
        print(task.lines()[-1].text, flush=True)


if __name__ == "__main__":
    unittest.main()
