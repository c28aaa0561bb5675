"""Starts an etcd server for the tests and reads its keys. Also has a server that is no etcd."""
import base64
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.request

import cluster
from certificates import make_authority, make_certificate

HTTP2 = b"\0\0\0\4\0\0\0\0\0"  # an empty SETTINGS frame, the first frame of a server
LEASE = 5  # the key of a killed task expires after this time; after a restart of etcd, the time starts again


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def certified(folder):
    """Returns the files of an authority and of one certificate, by the variables of etcdctl."""
    folder.mkdir(exist_ok=True)
    make_authority(folder, "ca")
    make_certificate(folder, "task", "ca")
    return {"ETCDCTL_CACERT": str(folder / "ca.pem"), "ETCDCTL_CERT": str(folder / "task.pem"),
            "ETCDCTL_KEY": str(folder / "task.key")}


def http(status, body):
    """Returns the bytes of an answer of HTTP/1.1."""
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


class Etcd:
    """One etcd member. Its data remain when it is killed."""

    def __init__(self, folder, tls=()):
        if shutil.which("etcd") is None:
            cluster.skip("no etcd (etcd-server)")
        self.folder, self.tls = folder, tls
        self.port, self.peer_port = cluster.free_ports(2)
        self.process = None
        self.start()

    def start(self, fresh=False):
        if fresh:
            shutil.rmtree(self.folder / "etcd")
        scheme = "https" if self.tls else "http"
        url, peers = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster",
                 f"default={peers}", "--unsafe-no-fsync", *map(str, self.tls)], stdout=log, stderr=log)
        if not self.tls:
            cluster.wait_until(self.answers, cluster.START, lambda: (self.folder / "etcd.log").read_text()[-2000:])

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None

    def ask(self, method, request):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v3/{method}", json.dumps(request).encode(),
                                    5 * cluster.PATIENCE) as answer:
            return json.load(answer)

    def answers(self):
        try:
            return "header" in self.ask("kv/range", {"key": encoded("/")})
        except OSError:
            return False

    def url(self, job="job"):
        return f"etcd://127.0.0.1:{self.port}/{job}"

    def registered(self, job="job"):
        """Returns the registered addresses: {"ps/0": "127.0.0.1:4000"}."""
        prefix = f"/gradrail/{job}/"
        found = self.ask("kv/range", {"key": encoded(prefix), "range_end": encoded(prefix[:-1] + "0")}).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode().removeprefix(prefix): base64.b64decode(kv["value"]).decode()
                for kv in found}

    def remove(self, key, job="job"):
        self.ask("kv/deleterange", {"key": encoded(f"/gradrail/{job}/{key}")})

    def put(self, key, value, job="job"):
        self.ask("kv/put", {"key": encoded(f"/gradrail/{job}/{key}"), "value": encoded(value)})


class Impostor:
    """A server that is no etcd: each connection receives the bytes of say() and is closed."""

    def __init__(self):
        self.answer = b""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"etcd://127.0.0.1:{self.server.getsockname()[1]}/job"
        threading.Thread(target=self.accept, daemon=True).start()

    def say(self, answer):
        self.answer = answer

    def accept(self):
        with contextlib.suppress(OSError):  # close() ends it
            while True:
                client = self.server.accept()[0]
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, contextlib.suppress(OSError):
            client.sendall(self.answer)
            client.recv(1)  # without a read, close() resets the connection, and the client may lose the bytes

    def close(self):
        self.server.close()


class EtcdTest(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.etcd = Etcd(self.folder)
        self.addCleanup(self.etcd.kill)

    def task(self, place, *flags, ps=1, workers=2, url=None, name=None, environment=None):
        """Starts the task of a place such as "ps/0"."""
        job, index = place.split("/")
        return self.train("--rendezvous", url or self.etcd.url(), "--job_name", job, "--task_index", index, "--ps", ps,
                          "--workers", workers, *self.flags, *flags, name=name or place, environment=environment)

    def start_all(self, *flags, ps=1, workers=2, **options):
        """Starts all tasks of a run: the ps tasks, then the workers."""
        places = [f"ps/{i}" for i in range(ps)] + [f"worker/{i}" for i in range(workers)]
        return [self.task(place, *flags, ps=ps, workers=workers, **options) for place in places]

    def wait_for_registered(self, *names):
        """Waits until exactly these ps tasks are registered with their ports."""
        def there():
            found = self.etcd.registered()
            return set(found) == set(names) and all(":" in address for address in found.values())
        cluster.wait_until(there, cluster.START, lambda: f"{self.etcd.registered()} instead of {names}")
