"""Shared parts of the tests of publishers and subscribers: the values of each version, and a reader that checks them."""
import cluster
import package

# The values of a version follow from its number: each process can compute them.
MODEL = """
import hashlib, socket, struct
SHAPES = {"embedding": (500, 60), "w": (64, 33), "scale": ()}

def values(version, shapes=SHAPES):
    random = np.random.default_rng(1)
    arrays = {name: np.asarray(random.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    for number in range(1, version + 1):
        random = np.random.default_rng(number)
        for array in arrays.values():
            flat = array.reshape(-1)
            flat[random.integers(0, flat.size, max(1, flat.size // 100))] *= np.float32(1.01)
    return arrays

def rounded(array):
    bits = np.asarray(array, np.float32).reshape(-1).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).reshape(np.shape(array))

def check(subscriber, version, shapes=SHAPES):
    assert subscriber.version == version, (subscriber.version, version)
    for name, array in values(version, shapes).items():
        expected = rounded(array) if subscriber.format == "bf16" else array.view(np.uint32)
        assert np.array_equal(subscriber.bits[name], expected), (version, name)

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "a condition was not met within 60 s"
        time.sleep(0.005)

def publish_all(publisher, *versions, shapes=SHAPES):
    for version in versions:
        publisher.publish(version, values(version, shapes))
        until(lambda: publisher.stats().get("newest", {}).get("version") == version)
"""

READER = MODEL + """
subscriber = gradrail.Subscriber(os.environ["ADDRESS"], follow=os.environ.get("FOLLOW", "newest"))
most = int(os.environ.get("MOST", "1000000000"))
count = 0
for version, weights in subscriber:
    check(subscriber, version)
    count += 1
    if count == 1:
        print("receives", flush=True)
    if count == most:
        break
print("last", version, subscriber.stats(), flush=True)
"""


class PublishTest(package.PackageTest):
    def good_program(self, program, environment=None):
        task = self.start_program(MODEL + program, environment)
        self.assert_ends(task, cluster.GOOD)
        return task
