"""Tests a transport of a third party, the example in C, and plug-ins that the loader refuses."""
import os
import pathlib
import unittest

import cluster
import digits

PLUGINS = pathlib.Path(os.environ.get("GRADRAIL_TEST_PLUGINS", ""))


class ThirdPartyPlugin(cluster.ClusterTest):
    def test_trains_with_the_bits_of_another_transport(self):
        data = digits.write(self.folder)
        hashes = []
        for transport in ("example", "tcp"):
            task = self.train("--mode", "sync", "--epochs", 2, "--workers", 2, "--data_dir", data, "--plugin_dir",
                              PLUGINS, "--transport", transport)
            self.assert_ends(task, cluster.GOOD, says=(rf"(?m)^Path: shard 0 at \S+: {transport}\b",))
            hashes.append(cluster.hash_of(task))
        self.assertEqual(*hashes)

    def test_replaces_a_lost_worker(self):
        servers, workers = self.start_cluster(2, "--plugin_dir", PLUGINS, "--transport", "example", "--epochs", 2000)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[1].signal(9)
        self.assert_goes_on(workers[0])
        self.assertTrue(servers[0].running())

    def test_info_names_the_reason_against_each_refused_plugin(self):
        info = self.launch("info", [cluster.binary(), "info"], {"GRADRAIL_PLUGIN_DIR": str(PLUGINS)})
        self.assert_ends(info, cluster.GOOD)
        self.assert_says(info, r"^  example .*; usable", r"^  table1 .*NOT usable: .*version 7 of the plug-in interface",
                         r"^  table2 .*NOT usable: .*its table has \d+ bytes", r"^  table3 .*NOT usable: .*put\(\)",
                         r"^  table5 .*NOT usable: .*is not a transport plug-in")


if __name__ == "__main__":
    unittest.main()
