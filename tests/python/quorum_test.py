"""The mode quorum with a grace window, through the Python package."""
import unittest

import package

# The third worker is 0.1 s late in each step. Its first step may be another one, if the others have begun alone.
LATE = """
rank = int(os.environ["GRADRAIL_TASK_INDEX"])
client = gradrail.join({"w": np.zeros(5)}, mode=os.environ["MODE"], learning_rate=1.0)
client.start()
client.barrier("begin")
for step in range(4):
    if rank == 2:
        time.sleep(0.1)
    client.gradients["w"][:] = -3.0 * (rank + 1)
    client.step()
print("worker", rank, "dropped", client.stats()["dropped"], "sum", client.parameters["w"][0], flush=True)
client.leave()
"""

# The first worker of a run decides its mode.
OTHER_MODE = """
refused(gradrail.FailedPrecondition, "mode quorum:1,grace=0.5 in the run, quorum:1 at worker 1", gradrail.join, {"w": np.zeros(5)},
        mode="quorum:1")
for text, words in (("grace=-1", "from 0 to 3600"), ("grace=nan", "from 0 to 3600"), ("grace=4000", "from 0 to 3600"),
                    ("window=1", "the options of quorum:K are grace=SECONDS or grace=auto")):
    refused(gradrail.InvalidArgument, words, gradrail.join, {"w": np.zeros(5)}, mode="quorum:1," + text)
refused(gradrail.InvalidArgument, "only quorum:K has options", gradrail.join, {"w": np.zeros(5)}, mode="ssp:1,grace=1")
print("ended", flush=True)
"""


class QuorumTest(package.PackageTest):
    def test_a_step_waits_for_a_late_worker(self):
        text = self.good_run(LATE, "--ps", 1, workers=3, environment={"MODE": "quorum:2,grace=30"}).text()
        for rank in range(3):
            self.assertIn(f"worker {rank} dropped 0 sum 24.0", text)

    def test_without_a_window_it_is_late(self):
        text = self.good_run(LATE, "--ps", 1, workers=3, environment={"MODE": "quorum:2,grace=0.001"}).text()
        self.assertRegex(text, r"worker 2 dropped [1-4]")

    def test_another_window_is_refused(self):
        _, environment = self.start_server(2)
        first = self.start_program("client = gradrail.join({'w': np.zeros(5)}, mode='quorum:1,grace=0.50')\n"
                                   "client.start(); print('begun', flush=True); time.sleep(60)", environment(0), "first")
        first.wait_for("begun")
        second = self.start_program(OTHER_MODE, environment(1), "second")
        self.assert_ends(second, package.cluster.GOOD)
        self.assertIn("ended", second.text())


if __name__ == "__main__":
    unittest.main()
