"""Publishers and subscribers of weights, in one process and in many."""
import signal
import unittest

import cluster
import package
from publishing import MODEL, READER, PublishTest


class Publishing(PublishTest):
    def test_readers_receive_each_version_bit_for_bit(self):
        self.good_program("""
for format in ("bf16", "fp32"):
    with gradrail.Publisher(values(0), format=format, keep=10) as publisher:
        each = gradrail.Subscriber(publisher.address, follow="each")
        newest = gradrail.Subscriber(publisher.address)
        assert each.shapes == SHAPES and each.version is None and each.hash is None
        publish_all(publisher, 1)
        assert each.next(20)[0] == 1
        publish_all(publisher, 2, 5, 9)
        for version in (2, 5, 9):
            number, weights = each.next(20)
            assert number == version
            check(each, version)
        assert newest.next(20)[0] == 9
        check(newest, 9)
        for name, array in values(9).items():
            assert weights[name].dtype == np.float32 and weights[name].shape == array.shape
            assert np.allclose(weights[name], array, rtol=0.01), name
        assert format == "bf16" or np.array_equal(weights["w"], values(9)["w"])
        stats = each.stats()
        assert (stats["full_versions"], stats["delta_versions"]) == (1, 3), stats
        assert 0 < stats["delta_bytes"] < stats["full_bytes"] / 4, stats
        assert newest.hash == each.hash == publisher.stats()["newest"]["hash"]
""")

    def test_the_hash_is_that_of_the_documentation(self):
        self.good_program("""
def text_of(names):
    text = struct.pack("<II", 1, len(names))
    for name, shape in names.items():
        text += struct.pack("<I", len(name)) + name.encode() + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text
shapes = {"large": (3, 400000), "b": ()}
with gradrail.Publisher(values(0, shapes)) as publisher:
    subscriber = gradrail.Subscriber(publisher.address)
    publish_all(publisher, 1, 2, shapes=shapes)
    subscriber.next(20)
    bits = b"".join(array.tobytes() for array in subscriber.bits.values())
    text = text_of(shapes)
    chunks = b"".join(hashlib.sha256(bits[i:i + 2 ** 20]).digest() for i in range(0, len(bits), 2 ** 20))
    expected = hashlib.sha256(b"gradrail weights 1" + struct.pack("<Q", len(text)) + text + chunks).hexdigest()
    assert subscriber.hash == expected, (subscriber.hash, expected)
""")

    @cluster.long("readers_receive_each_version_bit_for_bit has two readers, and neither leaves")
    def test_eight_readers_join_and_leave(self):
        stop = self.folder / "stop"
        publisher = self.start_program(MODEL + """
publisher = gradrail.Publisher(values(0), listen="127.0.0.1:0", keep=4)
print("at", publisher.address, flush=True)
version = 0
while not os.path.exists(os.environ["STOP"]):
    version += 1
    publisher.publish(version, values(version))
    time.sleep(0.01)
publisher.close(wait=60)
print("published", version, publisher.stats()["readers_lost"], flush=True)
""", {"STOP": str(stop)}, name="publisher")
        address = publisher.wait_for(r"at (\S+)").group(1)
        following = [self.start_program(READER, {"ADDRESS": address, "FOLLOW": follow}, name=f"reader {follow} {i}")
                     for i, follow in enumerate(("newest", "each", "newest", "each"))]
        for wave in range(2):
            leaving = [self.start_program(READER, {"ADDRESS": address, "MOST": "5"}, name=f"leaves {wave} {i}")
                       for i in range(4)]
            for task in leaving:
                self.assert_ends(task, cluster.GOOD)
        for task in following:
            task.wait_for("receives")
        stop.touch()
        self.assert_ends(publisher, cluster.GOOD)
        last = publisher.wait_for(r"published (\d+) 0")
        for task in following:
            self.assert_ends(task, cluster.GOOD)
            self.assertTrue(task.has(f"last {last.group(1)} "), task.transcript())

    @cluster.long("PublishedVersions has the answer of the publisher; no other test has such a reader")
    def test_a_reader_resumes_from_a_kept_version(self):
        self.good_program("""
with gradrail.Publisher(values(0), format="bf16", keep=3) as publisher:
    publish_all(publisher, 1)
    first = gradrail.Subscriber(publisher.address)
    _, weights = first.next(20)
    saved = {name: np.array(array) for name, array in weights.items()}  # as from a file
    publish_all(publisher, 2, 3)
    second = gradrail.Subscriber(publisher.address, (1, saved))
    assert second.version == 1
    assert second.next(20)[0] == 3
    check(second, 3)
    stats = second.stats()
    assert stats["full_versions"] == 0 and stats["delta_versions"] == 1, stats
    # A version that is current needs nothing, and the next one is a delta.
    early = gradrail.Subscriber(publisher.address)
    refused(gradrail.FailedPrecondition, "no version yet: call next()", lambda: early.weights)
    refused(gradrail.FailedPrecondition, "no version yet: call next()", lambda: early.bits)
    third = gradrail.Subscriber(publisher.address, (3, second.weights))
    refused(gradrail.DeadlineExceeded, "no new version has arrived", third.next, 0.2)
    publish_all(publisher, 4)
    assert third.next(20)[0] == 4 and third.stats()["full_versions"] == 0
    check(third, 4)
    # The number of a kept version with other values is not that version.
    saved["w"] = saved["w"] + np.float32(1)
    fourth = gradrail.Subscriber(publisher.address, (2, saved))
    fourth.next(20)
    check(fourth, 4)
    assert fourth.stats()["full_versions"] == 1
""")

    def test_the_end_of_a_program_is_the_end_for_its_readers(self):
        publisher = self.start_program(MODEL + """
publisher = gradrail.Publisher(values(0))
publisher.itself = publisher  # a cycle: no one frees it
print("at", publisher.address, flush=True)
publish_all(publisher, 1)
until(lambda: os.path.exists(os.environ["RECEIVED"]))
""", {"RECEIVED": str(self.folder / "received")}, name="publisher")
        address = publisher.wait_for(r"at (\S+)").group(1)
        reader = self.start_program(READER, {"ADDRESS": address}, name="reader")
        reader.wait_for("receives")
        (self.folder / "received").touch()
        self.assert_ends(publisher, cluster.GOOD)
        self.assert_ends(reader, cluster.GOOD)
        self.assertTrue(reader.has("last 1 "), reader.transcript())

    def test_ctrl_c_ends_a_wait(self):
        task = self.start_program("""
publisher = gradrail.Publisher({"w": 1.0})
subscriber = gradrail.Subscriber(publisher.address)
try:
    print("waits", flush=True)
    subscriber.next()
except KeyboardInterrupt:
    print("interrupted", flush=True)
""")
        task.wait_for("waits")
        task.signal(signal.SIGINT)
        task.wait_for("interrupted")
        self.assert_ends(task, cluster.GOOD)


class TorchPublishing(package.PackageTest):
    MODULES = ("numpy", "torch")

    def test_a_module_follows_another(self):
        task = self.start_program("""
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 1))
for format, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    trained, served = make(), make().to(kind)
    with gradrail.Publisher(trained, format=format) as publisher:
        subscriber = gradrail.Subscriber(publisher.address)
        assert "1.num_batches_tracked" not in subscriber.shapes and "1.running_mean" in subscriber.shapes
        for version in (1, 2):
            with torch.no_grad():
                trained[0].weight[version] += 1
            trained[1].running_mean += 0.5
            publisher.publish(version)
            while subscriber.version != version:
                subscriber.next(20)
            subscriber.load_into(served)
            for name, expected in trained.state_dict().items():
                if expected.is_floating_point():
                    assert torch.equal(served.state_dict()[name], expected.to(kind)), name
        wrong = gradrail.InvalidArgument
        refused(wrong, "no tensor", subscriber.load_into, torch.nn.Linear(20, 30))
        refused(wrong, "a torch module or a mapping of torch tensors", subscriber.load_into, None)
        for other in (np.zeros(3), torch.zeros(3, dtype=torch.int32)):
            refused(wrong, "'0.weight' must be a torch tensor of a floating-point type", subscriber.load_into,
                    {**served.state_dict(), "0.weight": other})
""")
        self.assert_ends(task, cluster.GOOD)


if __name__ == "__main__":
    unittest.main()
