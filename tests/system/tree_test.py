"""Tests trees of parameter servers on three hosts: a root, and two racks with a node and its workers. It needs root."""
import json
import signal
import unittest

import cluster
import digits
import four_hosts

WORKERS = 4  # of each node
RACKS = (1, 2)


class Trees(four_hosts.FourHosts):
    HOSTS = 3

    def setUp(self):
        super().setUp()
        self.data = digits.write(self.folder)

    def clusters(self, workers=WORKERS):
        """Writes the cluster of the root, whose workers are the nodes, and one for each node."""
        nodes = [f"{four_hosts.address_of(rack)}:2222" for rack in RACKS]
        self.root_cluster = self.write_json({"ps": [f"{four_hosts.address_of(0)}:2222"], "worker": nodes}, "root.json")
        self.node_clusters = [
            self.write_json({"ps": [node], "worker": [f"{four_hosts.address_of(rack)}:{3000 + i}" for i in range(workers)]},
                            f"node{rack}.json") for node, rack in zip(nodes, RACKS)]

    def task(self, host, name, *flags):
        command = ["ip", "netns", "exec", self.hosts[host], cluster.binary(), "train", "--insecure", "--model", "mlp",
                   "--mode", "sync", "--data_dir", self.data, "--log_every", 1, *flags]
        return self.launch(name, [str(word) for word in command], {"TMPDIR": str(self.folder)})

    def start_root(self, *flags):
        return self.task(0, "root", "--cluster", self.root_cluster, "--job_name", "ps", "--task_index", 0, *flags)

    def start_node(self, rack, *flags):
        return self.task(RACKS[rack], f"node {rack}", "--cluster", self.node_clusters[rack], "--job_name", "ps",
                         "--task_index", 0, "--parent", self.root_cluster, *flags)

    def start_workers(self, rack, *flags):
        return [self.task(RACKS[rack], f"worker {rack}/{i}", "--cluster", self.node_clusters[rack], "--job_name", "worker",
                          "--task_index", i, "--first_worker", rack * WORKERS, *flags) for i in range(WORKERS)]

    def start_tree(self, *flags):
        self.clusters()
        root = self.start_root(*flags)
        nodes = [self.start_node(rack, *flags) for rack in range(2)]
        return root, nodes, [self.start_workers(rack, *flags) for rack in range(2)]

    def bytes_into_root(self):
        shown = four_hosts.ip("-n", self.hosts[0], "-j", "-s", "link", "show", "dev", "eth0").stdout
        return json.loads(shown)[0]["stats64"]["rx"]["bytes"]

    def end_tree(self, root, nodes, workers):
        """All tasks end well, and the chiefs of both nodes have the same parameters. Returns their hash."""
        for task in (*workers[0], *workers[1], *nodes, root):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
        found = cluster.hash_of(workers[0][0])
        self.assertEqual(cluster.hash_of(workers[1][0]), found)
        return found

    def whole_tree(self, *flags):
        """Returns (hash, bytes into the host of the root)."""
        before = self.bytes_into_root()
        found = self.end_tree(*self.start_tree("--epochs", 2, *flags))
        return found, self.bytes_into_root() - before

    def whole_flat_run(self, *flags):
        before = self.bytes_into_root()
        hosts = [RACKS[i // WORKERS] for i in range(2 * WORKERS)]
        names = [f"{four_hosts.address_of(host)}:{3000 + i}" for i, host in enumerate(hosts)]
        flat = self.write_json({"ps": [f"{four_hosts.address_of(0)}:2222"], "worker": names}, "flat.json")
        common = ("--cluster", flat, "--epochs", 2, *flags)
        ps = self.task(0, "ps", *common, "--job_name", "ps", "--task_index", 0)
        workers = [self.task(host, f"worker/{i}", *common, "--job_name", "worker", "--task_index", i)
                   for i, host in enumerate(hosts)]
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
        return self.bytes_into_root() - before

    def test_bytes_into_the_root_fall_by_the_fan_in_and_bits_repeat(self):
        first, tree = self.whole_tree()
        second, _ = self.whole_tree()
        self.assertEqual(first, second)
        flat = self.whole_flat_run()
        print(f"bytes into the root: {flat} flat, {tree} through two nodes")
        self.assertAlmostEqual(flat / tree, WORKERS, delta=0.3)

    def test_a_killed_node_comes_back(self):
        root, nodes, workers = self.start_tree("--epochs", 100000)
        workers[0][0].wait_for(r"Step: 10\b")
        nodes[1].signal(signal.SIGKILL)
        nodes[1].code()
        root.wait_for("worker 1 .* was lost")
        self.assert_goes_on(workers[0][0])
        nodes[1] = self.start_node(1)
        for worker in workers[1]:
            worker.wait_for("all parameter servers are back", cluster.FINISH)
        self.assert_goes_on(workers[1][0])
        for worker in (*workers[0], *workers[1]):
            worker.signal(signal.SIGTERM)
        for task in (*workers[0], *workers[1], *nodes, root):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)

    def test_a_node_waits_for_a_root_that_starts_again(self):
        saved = ("--checkpoint_dir", self.folder / "saved")
        every = ("--epochs", 100000, "--save_steps", 5)
        self.clusters()
        root = self.start_root(*saved)
        nodes = [self.start_node(rack) for rack in range(2)]
        workers = [self.start_workers(rack, *every) for rack in range(2)]
        workers[0][0].wait_for(r"Step: 20\b")
        root.signal(signal.SIGKILL)
        root.code()
        nodes[0].wait_for("this node begins again")
        root = self.start_root(*saved)
        root.wait_for(r"restored global step [1-9]\d* from")
        for rack in range(2):
            workers[rack][0].wait_for("all parameter servers are back", cluster.FINISH)
            self.assert_goes_on(workers[rack][0])
        for worker in (*workers[0], *workers[1]):
            worker.signal(signal.SIGTERM)
        for task in (*workers[0], *workers[1], *nodes, root):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)

    def test_three_levels(self):
        """A node of the root has a node and a worker, on one host."""
        root, middle, leaf = (f"{four_hosts.address_of(host)}:2222" for host in range(3))
        clusters = [self.write_json(cluster_of, f"level{i}.json") for i, cluster_of in enumerate((
            {"ps": [root], "worker": [middle]}, {"ps": [middle], "worker": [leaf, f"{four_hosts.address_of(1)}:3000"]},
            {"ps": [leaf], "worker": [f"{four_hosts.address_of(2)}:{3000 + i}" for i in range(2)]}))]
        common = ("--epochs", 1, "--task_index")
        servers = [self.task(i, f"ps of level {i}", "--cluster", clusters[i], "--job_name", "ps", *common, 0,
                             *(["--parent", clusters[i - 1]] if i > 0 else [])) for i in range(3)]
        workers = [self.task(level, f"worker {index} of level {level}", "--cluster", clusters[level], "--job_name", "worker",
                             *common, index, "--first_worker", first) for level, index, first in ((1, 1, 0), (2, 0, 1), (2, 1, 1))]
        for task in (*workers, *servers):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
        chief = workers[1]  # worker 0 of the lowest node
        self.assertRegex(cluster.hash_of(chief), "[0-9a-f]{64}")


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
