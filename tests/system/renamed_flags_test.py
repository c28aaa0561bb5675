"""Tests that the former name of a flag is refused, and that the message names the new flag."""
import unittest

import cluster


class RenamedFlags(cluster.ClusterTest):
    def test_a_former_name_is_refused_with_the_new_one(self):
        for flags, words in (
                (["--rejoin_secs", 1], "--rejoin_secs is now --rejoin-timeout"),
                (["--join-timeout-s", 1], "--join_timeout_s is now --join-timeout"),
                (["--silence_limit_s=1"], "--silence_limit_s is now --heartbeat-timeout"),
                (["--replicas", 1], "--replicas is now --backup-ps"),
                (["--meet", "n1:5"], "--meet is now --rendezvous tcp://HOST:PORT")):
            with self.subTest(flags=flags):
                self.refused(cluster.USAGE, [words], *flags)

    def test_new_names_accept_underscores(self):
        self.refused(cluster.USAGE, ["--heartbeat-timeout: '0' is not"], "--heartbeat_timeout", 0)


if __name__ == "__main__":
    unittest.main()
