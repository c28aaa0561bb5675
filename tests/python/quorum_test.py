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
print("worker", rank, "dropped", client.stats()["dropped"], flush=True)
client.leave()
"""


class QuorumTest(package.PackageTest):
    def test_without_a_window_it_is_late(self):
        text = self.good_run(LATE, "--ps", 1, workers=3, environment={"MODE": "quorum:2,grace=0.001"}).text()
        self.assertRegex(text, r"worker 2 dropped [1-4]")


if __name__ == "__main__":
    unittest.main()
