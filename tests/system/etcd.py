"""An etcd of our own, on ports of its own, and what one sees in it; a proxy before it that can fall ill."""
import base64
import http.server
import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import cluster
from certificates import make_authority, make_certificate

LEASE = 5  # a killed task's key stays so long, and as long again when etcd was begun anew in between


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def certified(folder):
    """Returns the files of an authority and of one certificate, by the names of etcdctl's variables."""
    folder.mkdir(exist_ok=True)
    make_authority(folder, "ca")
    make_certificate(folder, "task", "ca")
    return {"ETCDCTL_CACERT": str(folder / "ca.pem"), "ETCDCTL_CERT": str(folder / "task.pem"),
            "ETCDCTL_KEY": str(folder / "task.key")}


class Etcd:
    """One etcd member. Its data stay when it is killed."""

    def __init__(self, folder, tls=()):
        if shutil.which("etcd") is None:
            cluster.skip("no etcd (etcd-server)")
        top = subprocess.run([cluster.binary(), "top", "etcd://127.0.0.1:1/job", "--once"], capture_output=True, text=True,
                             timeout=cluster.START)
        if "built without libcurl" in top.stderr:
            cluster.skip("built without libcurl")
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
        """{"ps/0": {"address": …}}"""
        prefix = f"/gradrail/{job}/"
        found = self.ask("kv/range", {"key": encoded(prefix), "range_end": encoded(prefix[:-1] + "0")}).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode().removeprefix(prefix): json.loads(base64.b64decode(kv["value"]))
                for kv in found}

    def remove(self, key, job="job"):
        self.ask("kv/deleterange", {"key": encoded(f"/gradrail/{job}/{key}")})

    def put(self, key, value, job="job"):
        self.ask("kv/put", {"key": encoded(f"/gradrail/{job}/{key}"), "value": encoded(value)})


class Proxy:
    """Passes everything on until `answer` is set: a function that is given the path, and returns (status, body)."""

    def __init__(self, etcd):
        self.answer, self.asked = None, 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = outer.answer(self.path) if outer.answer else outer.pass_on(etcd, self.path, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:  # the client has closed the connection already
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # tasks hang up as they like
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"etcd://127.0.0.1:{self.server.server_address[1]}/job"

    @staticmethod
    def pass_on(etcd, path, body):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{etcd.port}{path}", body, 5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class EtcdTest(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.etcd = Etcd(self.folder)
        self.addCleanup(self.etcd.kill)

    def task(self, job, *flags, url=None, name=None, environment=None):
        return self.train("--rendezvous", url or self.etcd.url(), "--job_name", job, *self.flags, *flags,
                          name=name or job, environment=environment)

    def place_of(self, task):
        return task.wait_for(r"^# ((?:ps|worker)/\d+)").group(1)

    def wait_for_registered(self, *names, within=cluster.START):
        """Exactly these tasks, each ps with its port."""
        def there():
            found = self.etcd.registered()
            return set(found) == set(names) and all(":" in found[name]["address"] for name in names if "ps" in name)
        cluster.wait_until(there, within, lambda: f"{self.etcd.registered()} instead of {names}")
