"""The table of suites: what runs in the guests, for how long, and how its result is read.

To add one: an entry here, and if it is more than a command line, a job in jobs/. A job finds in its environment
    ROLE (0 or 1)  RANKS (guests)  MY_ADDRESS  PEER_ADDRESS  NETDEV  BUILD (build folder)  LAB (this folder)
and rxe0, the RDMA device; /out/<suite>/ is a folder that both guests and the host see.
"""
import pathlib
from dataclasses import dataclass, field

import results

# What the libraries need to be told on soft-RoCE.
ENVIRONMENT = {
    # With the default, an IPv4 GID, UCX's UD packets vanish and rc, which is wired up over them, dies (UCX 1.13 and 1.18).
    "UCX_IB_GID_INDEX": "0",
    "UCX_NET_DEVICES": "rxe0:1",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # rxe's completion queues end at 32767 entries; ofi_rxm sizes them by this, and its own default asks for more.
    "FI_UNIVERSE_SIZE": "16",
}


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    job: str  # shell: a command line, or the path of a job
    seconds: int  # limit, in the guest; about four times what it takes on a quiet machine
    guests: int = 1  # 2: the job runs in both, ROLE tells which
    read: object = results.read_gtest
    needs: tuple = ()  # files of the build folder without which there is nothing to run
    environment: dict = field(default_factory=dict)
    requires: tuple = ()  # words of GRADRAIL_REQUIRE that forbid this suite to skip, beside "rdma" and its own name

    def missing(self, build):
        return [name for name in self.needs if not pathlib.Path(build, name).exists()]

    def is_required(self, words):
        return bool({"rdma", self.name, *self.requires} & set(words.split(",")))


CONFORMANCE = "tests/conformance_test"

SUITES = (
    Suite("lab-libraries", "the lab itself: verbs, libfabric, UCX over soft-RoCE between two hosts, and a cut cable",
          job='. "$LAB/jobs/libraries.sh"', seconds=150, guests=2, read=results.read_steps,
          needs=("tests/verbs_writer",)),
    Suite("conformance-tcp", "the transport suite over tcp: the build's programs run in a guest",
          job=f'"$BUILD/{CONFORMANCE}" --gtest_filter="*/tcp_*:-*_of_every_size_*:*_round_trips*"', seconds=90, needs=(CONFORMANCE,)),
)
