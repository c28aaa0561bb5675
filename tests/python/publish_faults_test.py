"""Faults around publishers and subscribers: suspensions, damage, kills, wrong secrets and wrong calls."""
import os
import signal
import unittest

import cluster
from publishing import MODEL, PublishTest


class PublishFaults(PublishTest):
    @cluster.long("PublishedVersions has the queue; no other test has a reader that does not read")
    def test_a_suspended_reader_delays_no_one(self):
        publisher = self.start_program(MODEL + """
LARGE = {"w": (4000, 4000)}
base = values(0, LARGE)
publisher = gradrail.Publisher(base, format="fp32", keep=2, reader_timeout=3)
print("at", publisher.address, flush=True)
until(lambda: os.path.exists(os.environ["STOPPED"]))
publisher.publish(1)  # a part of it fits into the socket of the suspended reader
until(lambda: publisher.stats()["full_versions_sent"] == 1)
healthy = gradrail.Subscriber(publisher.address)
lost = 0
for version in range(2, 12):
    base["w"][version] += 1
    publisher.publish(version)  # would block forever if it waited for the suspended reader
    while healthy.version != version:
        healthy.next(30)
    assert np.array_equal(healthy.weights["w"], base["w"])
print("published all", flush=True)
until(lambda: publisher.stats()["readers_lost"] == 1)
print("lost", flush=True)
until(lambda: os.path.exists(os.environ["STOPPED"] + "-received"))
publisher.close(wait=60)
""", {"STOPPED": str(self.folder / "stopped")}, name="publisher")
        address = publisher.wait_for(r"at (\S+)").group(1)
        reader = self.start_program("""
subscriber = gradrail.Subscriber(os.environ["ADDRESS"])
refused(gradrail.DeadlineExceeded, "no new version has arrived", subscriber.next, 0)  # the request is sent
open(os.environ["STOPPED"], "w").close()
os.kill(os.getpid(), signal.SIGSTOP)
while subscriber.version != 11:
    subscriber.next(60)
open(os.environ["STOPPED"] + "-received", "w").close()
assert subscriber.stats()["connections"] == 2, subscriber.stats()
""", {"ADDRESS": address, "STOPPED": str(self.folder / "stopped")}, name="reader")
        publisher.wait_for("published all")
        publisher.wait_for("lost")
        self.assertTrue(publisher.has("reader .* received nothing for"), publisher.transcript())
        reader.signal(signal.SIGCONT)
        self.assert_ends(reader, cluster.GOOD)
        self.assert_ends(publisher, cluster.GOOD)

    @cluster.long("PublishMessage refuses such headers; no other test has a reader that receives them")
    def test_damaged_bytes_are_detected(self):
        self.good_program("""
# A proxy that inverts a byte at some offsets of the bytes to the reader, or ends a connection there.
def proxy(target, damage):
    listener = socket.create_server(("127.0.0.1", 0))
    def copy(source, sink, edit):
        place = 0
        while True:
            try:
                data = bytearray(source.recv(65536))
                if not data:
                    break
                edit(data, place)
                place += len(data)
                sink.sendall(data)
            except (OSError, EOFError):
                break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
    def serve():
        while True:
            reader, _ = listener.accept()
            publisher = socket.create_connection(target)
            for arguments in ((reader, publisher, lambda data, place: None), (publisher, reader, damage)):
                threading.Thread(target=copy, args=arguments, daemon=True).start()
    threading.Thread(target=serve, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]

def invert_at(*offsets):
    left = list(offsets)
    def edit(data, place):
        while left and place <= left[0] < place + len(data):
            data[left.pop(0) - place] ^= 0x10
    return edit

def cut_once():
    cut = []
    def edit(data, place):
        if not cut and place > 100000:
            cut.append(1)
            raise EOFError
    return edit

LARGE = {"w": (1000, 600)}
with gradrail.Publisher(values(0, LARGE), format="fp32") as publisher:
    publish_all(publisher, 1, shapes=LARGE)
    host, port = publisher.address.split(":")
    once = gradrail.Subscriber(proxy((host, int(port)), invert_at(1000000)))
    once.next(20)
    check(once, 1, LARGE)
    assert once.stats()["hash_failures"] == 1 and once.stats()["connections"] == 1, once.stats()
    again = gradrail.Subscriber(proxy((host, int(port)), invert_at(1000000, 3400000)))
    refused(gradrail.DataLoss, "has a wrong hash", again.next, 20)
    assert again.version is None and again.hash is None
    cut = gradrail.Subscriber(proxy((host, int(port)), cut_once()))
    cut.next(20)
    check(cut, 1, LARGE)
    assert cut.stats()["connections"] == 2 and cut.stats()["hash_failures"] == 0, cut.stats()
    # A header that is damaged has no valid authentication code, also without a secret.
    header = gradrail.Subscriber(proxy((host, int(port)), invert_at(150)))
    refused(gradrail.DataLoss, "", header.next, 20)
    header.next(20)
    check(header, 1, LARGE)
    # A damaged delta: all parameters follow.
    delta = gradrail.Subscriber(proxy((host, int(port)), invert_at(2402000)))
    delta.next(20)
    publish_all(publisher, 2, shapes=LARGE)
    delta.next(20)
    check(delta, 2, LARGE)
    stats = delta.stats()
    assert (stats["hash_failures"], stats["full_versions"], stats["delta_versions"]) == (1, 2, 0), stats
""")

    def test_a_killed_publisher_is_replaced(self):
        port, = cluster.free_ports(1)
        program = MODEL + """
publisher = gradrail.Publisher(values(0), listen="127.0.0.1:" + os.environ["PORT"])
until(lambda: publisher.stats()["readers"] == int(os.environ["READERS"]))
publish_all(publisher, *map(int, os.environ["VERSIONS"].split()))
print("published", flush=True)
if os.environ["READERS"] == "0":
    time.sleep(600)
publisher.close(wait=60)
"""
        def start(versions, readers=0):
            environment = {"PORT": str(port), "VERSIONS": versions, "READERS": str(readers)}
            task = self.start_program(program, environment, name="publisher")
            task.wait_for("published")
            return task

        publisher = start("7 8")
        reader = self.start_program(MODEL + """
subscriber = gradrail.Subscriber("127.0.0.1:" + os.environ["PORT"])
runs = []
for version, weights in subscriber:
    check(subscriber, version)
    if version == 8:
        refused(gradrail.DeadlineExceeded, "", subscriber.next, 0.1)
        check(subscriber, 8)
    runs.append(subscriber.stats()["run"])
    print("has", version, subscriber.stats(), flush=True)
assert len(set(runs)) == 3, runs
""", {"PORT": str(port)}, name="reader")
        reader.wait_for("has 8 ")
        publisher.signal(signal.SIGKILL)
        publisher.code()
        publisher = start("3")  # a restart from a checkpoint: the number is lower
        reader.wait_for("has 3 .*'full_versions': 2")
        publisher.signal(signal.SIGKILL)
        publisher.code()
        publisher = start("3 4", readers=1)  # version 3 again, bit for bit: the reader continues with a delta
        reader.wait_for("has 4 .*'delta_versions': 1.*'full_versions': 2")
        self.assert_ends(publisher, cluster.GOOD)
        self.assert_ends(reader, cluster.GOOD)

    def test_the_end_and_a_restart_with_other_tensors(self):
        port, = cluster.free_ports(1)
        self.good_program("""
address = "127.0.0.1:" + os.environ["PORT"]
refused(gradrail.DeadlineExceeded, "is the publisher running?", gradrail.Subscriber, address, connect_timeout=0.3)
publisher = gradrail.Publisher(values(0), listen=address)
subscriber = gradrail.Subscriber(address)
publish_all(publisher, 3)
closing = threading.Thread(target=publisher.close)
closing.start()
assert [version for version, _ in subscriber] == [3]
closing.join()
refused(gradrail.FailedPrecondition, "after close", publisher.publish, 4)
refused(gradrail.DeadlineExceeded, "refused", subscriber.next, 0.3)
check(subscriber, 3)  # the values stay
with gradrail.Publisher({"other": np.zeros(3)}, listen=address) as publisher:
    publisher.publish(1)
    refused(gradrail.FailedPrecondition, "other tensors", subscriber.next, 20)
    check(subscriber, 3)
""", {"PORT": str(port)})

    def test_a_reader_that_computes_does_not_delay_the_end(self):
        self.good_program("""
publisher = gradrail.Publisher(values(0))
subscriber = gradrail.Subscriber(publisher.address)
publish_all(publisher, 3)
subscriber.next()
publisher.close(wait=3600)
refused(gradrail.Aborted, "version 3 was its last", subscriber.next, 20)
check(subscriber, 3)
""")

    def test_secrets(self):
        secret = self.secret_file()
        other = self.folder / "other"
        other.write_text("x" * 64)
        os.chmod(other, 0o600)
        self.good_program("""
secret, other = os.environ["SECRET"], os.environ["OTHER"]
refused(gradrail.FailedPrecondition, "secret_file, or insecure", gradrail.Publisher, {"w": 1.0}, listen="0.0.0.0:0")
refused(gradrail.FailedPrecondition, "secret_file, or insecure", gradrail.Subscriber, "192.0.2.1:7000")
with gradrail.Publisher(values(0), listen="0.0.0.0:0", secret_file=secret) as publisher:
    address = publisher.address.replace("0.0.0.0", "127.0.0.1")
    for wrong in (None, other):
        refused(gradrail.FailedPrecondition, "same secret file", gradrail.Subscriber, address, secret_file=wrong)
    publish_all(publisher, 1)
    subscriber = gradrail.Subscriber(address, secret_file=secret)
    subscriber.next(20)
    check(subscriber, 1)
with gradrail.Publisher(values(0)) as publisher:  # a publisher without the secret is refused as well
    refused(gradrail.FailedPrecondition, "secret", gradrail.Subscriber, publisher.address, secret_file=secret)
""", {"SECRET": str(secret), "OTHER": str(other)})

    @cluster.long("no other test has connections without a request, or too many readers")
    def test_unauthenticated_connections_do_not_disturb_readers(self):
        self.good_program("""
with gradrail.Publisher(values(0), max_readers=3) as publisher:
    host, port = publisher.address.split(":")
    others = [socket.create_connection((host, int(port))) for _ in range(2)]
    others[0].sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" + bytes(100))
    try:
        while others[0].recv(4096):  # the greeting, then the end
            pass
    except ConnectionResetError:
        pass
    subscriber = gradrail.Subscriber(publisher.address)
    publish_all(publisher, 1)
    subscriber.next(20)
    more = [gradrail.Subscriber(publisher.address) for _ in range(2)]  # in the place of the other connection
    assert others[1].recv(4096) and not others[1].recv(4096)
    refused(gradrail.ResourceExhausted, "max_readers", gradrail.Subscriber, publisher.address)
    publish_all(publisher, 2)
    subscriber.next(20)
    check(subscriber, 2)
""")

    def test_misuse_is_refused(self):
        self.good_program("""
wrong = gradrail.InvalidArgument
for words, model, options in (
        ("must be a mapping", 3, {}), ("dtype int64", {"w": np.arange(3)}, {}),
        ("dtype complex", {"w": np.ones(2, complex)}, {}), ("keep", {"w": 1.0}, {"keep": 0}),
        ("format 'fp8'", {"w": 1.0}, {"format": "fp8"}), ("listen", {"w": 1.0}, {"listen": 3}),
        ("a:b:c", {"w": 1.0}, {"listen": "a:b:c"}), ("reader_timeout", {"w": 1.0}, {"reader_timeout": -1}), ("", {}, {})):
    refused(wrong, words, gradrail.Publisher, model, **options)
refused(wrong, "follow 'all'", gradrail.Subscriber, "127.0.0.1:1", follow="all")
refused(wrong, "", gradrail.Subscriber, "127.0.0.1:x")
refused(wrong, "port 0: give the port", gradrail.Subscriber, "127.0.0.1:0")
publisher = gradrail.Publisher(values(0))
refused(gradrail.AlreadyExists, "in use", gradrail.Publisher, values(0), listen=publisher.address)
publish_all(publisher, 5)
for version in (5, 4):
    refused(wrong, "more than 5", publisher.publish, version)
refused(wrong, "version", publisher.publish, -1)
refused(wrong, "version", publisher.publish, 1.5)
refused(wrong, "missing: ['scale']", publisher.publish, 6, dict(list(values(0).items())[:2]))
refused(wrong, "has shape", publisher.publish, 6, {**values(0), "w": np.zeros(3)})
refused(wrong, "dtype", publisher.publish, 6, {**values(0), "w": np.zeros((64, 33), int)})
subscriber = gradrail.Subscriber(publisher.address)
refused(wrong, "(version, values)", gradrail.Subscriber, publisher.address, 5)
refused(wrong, "missing", gradrail.Subscriber, publisher.address, (5, {}))
refused(wrong, "timeout", subscriber.next, -1)
_, weights = subscriber.next(20)
try:
    subscriber.bits["w"][0, 0] = 1
except ValueError:
    pass
else:
    raise AssertionError("the memory of a subscriber was written")
try:
    weights["x"]
except KeyError as error:
    assert "the tensors are" in str(error)
waiting = threading.Thread(target=lambda: refused(gradrail.DeadlineExceeded, "", subscriber.next, 3))
waiting.start()
until(lambda: subscriber._busy.locked())
refused(gradrail.FailedPrecondition, "another thread", subscriber.next, 1)
waiting.join()
child = os.fork()
if child == 0:
    refused(gradrail.FailedPrecondition, "forked", publisher.publish, 6, values(6))
    refused(gradrail.FailedPrecondition, "forked", subscriber.next, 1)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
views = subscriber.bits["w"]
del subscriber
assert np.array_equal(views, rounded(values(5)["w"]))  # a view keeps the memory
""")


if __name__ == "__main__":
    unittest.main()
