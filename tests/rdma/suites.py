"""The table of suites: the jobs of the guests, their time limits, and the readers of their results.

A new suite needs an entry in SUITES. If it is more than a command line, it also needs a job in jobs/. A job has the
environment variables
    ROLE (0 or 1)  RANKS (guests)  MY_ADDRESS  PEER_ADDRESS  NETDEV  BUILD (build folder)  LAB (this folder)
and the RDMA device rxe0. Both guests and the host share the folder /out/<suite>/.
"""
import pathlib
from dataclasses import dataclass, field

import mnist
import results

# Settings that the libraries need on soft-RoCE.
ENVIRONMENT = {
    # With the default, an IPv4 GID, UD packets of UCX are lost. rc connects over UD and fails then (UCX 1.13 and 1.18).
    "UCX_IB_GID_INDEX": "0",
    "UCX_NET_DEVICES": "rxe0:1",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # Completion queues of rxe have at most 32767 entries. ofi_rxm sizes them by this value, and its default needs more.
    "FI_UNIVERSE_SIZE": "16",
}


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    job: str  # shell: a command line, or the path of a job
    seconds: int  # time limit in the guest; about four times the run time on an idle machine
    guests: int = 1  # 2: the job runs in both guests; ROLE has the number
    read: object = results.read_gtest
    needs: tuple = ()  # files of the build folder that the suite needs; it is skipped without them
    environment: dict = field(default_factory=dict)
    long: bool = False  # runs with --full, or if --only names the suite
    asked: bool = False  # runs only if --only names the suite
    prepare: tuple = ()  # functions that write files into the folder of the run, which is /out in the guests
    requires: tuple = ()  # words of GRADRAIL_REQUIRE that forbid skips, besides "rdma" and the name of the suite

    def missing(self, build):
        return [name for name in self.needs if not pathlib.Path(build, name).exists()]

    def is_required(self, words):
        return bool({"rdma", self.name, *self.requires} & set(words.split(",")))



def small_mnist(out):
    if not (out / "mnist").exists():
        mnist.write(out / "mnist")


CONFORMANCE = "tests/conformance_test"
GRADRAIL = "bin/gradrail"


def plugin(transport):
    return f"lib/gradrail/libgradrail_transport_{transport}.so"


def conformance(name, about, transport, seconds, environment, long=False):
    """Returns a suite that runs the transport suite and forbids skips."""
    return Suite(f"conformance-{name}", about, job='. "$LAB/jobs/conformance.sh"', seconds=seconds, guests=2,
                 requires=(transport,), needs=(CONFORMANCE, plugin(transport)), long=long,
                 environment={"TRANSPORT": transport, "GRADRAIL_REQUIRE": transport, **environment})


def training(name, about, transport, steps, seconds=300, environment=None, long=False):
    return Suite(
        f"train-{name}", about, job=f'. "$LAB/jobs/train.sh"; reference; {steps}; exit $failed', seconds=seconds, guests=2,
        read=results.read_steps, needs=(GRADRAIL, plugin(transport)), prepare=(small_mnist,), requires=(transport,),
        environment=environment or {}, long=long)


def refusals(name, about, cases):
    return Suite(f"refusals-{name}", about, job='. "$LAB/jobs/refusals.sh"', seconds=120, read=results.read_steps,
                 needs=(GRADRAIL, plugin("ofi"), plugin("ucx")), requires=("ofi", "ucx"), environment={"CASES": cases})


def removed(transport, environment=None):
    return Suite(f"removed-{transport}", "the device is removed during a run, which continues over tcp; same hash",
                 job='. "$LAB/jobs/removed.sh"', seconds=150, read=results.read_steps, needs=(GRADRAIL, plugin(transport)),
                 requires=(transport,), environment={"TRANSPORT": transport, **(environment or {})}, long=True)


def keys(transport, environment):
    program = f"tests/{transport}_transport_test"
    return Suite(f"keys-{transport}", "256 guessed keys: each is refused and closes only the connection of its sender",
                 job=f'GRADRAIL_TEST_HOST=$MY_ADDRESS "$BUILD/{program}" --gtest_filter="*guessed_keys*"', seconds=150,
                 needs=(program, plugin(transport)), requires=(transport,), environment=environment, long=True)


def gpu(transport, about, ways, environment):
    return Suite(f"gpu-{transport}", about, job='. "$LAB/jobs/gpu.sh"', seconds=90, requires=(transport,),
                 needs=("tests/gpu_conformance_test", plugin(transport), f"tests/simulated_hmem/libsimulated_hmem_{transport}.so"),
                 environment={"TRANSPORT": transport, "GRADRAIL_REQUIRE": transport, "WAYS": ways, **environment})


# rc_verbs connects over ud_verbs. Without it, or with tcp, UCX fails with "no auxiliary transport".
UCX_RC = {"UCX_TLS": "rc_verbs,ud_verbs"}
UCX_UD = {"UCX_TLS": "ud_verbs"}
FEW_STEPS = {"BATCH": "1100"}

SUITES = (
    Suite("lab-libraries", "verbs, libfabric and UCX over soft-RoCE without gradrail, and a cut cable",
          job='. "$LAB/jobs/libraries.sh"', seconds=150, guests=2, read=results.read_steps,
          needs=("tests/verbs_writer",)),
    Suite("conformance-tcp", "the quick tests of the transport suite over tcp: programs of the build run in a guest",
          job=f'"$BUILD/{CONFORMANCE}" --gtest_filter="*/tcp_threads:-*_of_every_size_*:*_round_trips*"', seconds=90,
          needs=(CONFORMANCE,), long=True),
    refusals("memlock", "too little lockable memory or no device: tcp with the reason, or an error", "memlock absent"),
    refusals("device", "a port down or a removed device after the start of the ps: the same", "port_down removed"),
    conformance("ofi-verbs", "the transport suite over verbs of libfabric", "ofi", 180,
                {"GRADRAIL_TEST_OFI_PROVIDER": "verbs"}),
    conformance("ucx-rc", "the transport suite over rc_verbs of UCX", "ucx", 180, UCX_RC),
    conformance("ucx-ud", "the transport suite over ud_verbs of UCX", "ucx", 240, UCX_UD, long=True),
    gpu("ofi", "memory of a simulated GPU over verbs of libfabric, by address and by dma-buf", "peermem dmabuf",
        {"GRADRAIL_TEST_OFI_PROVIDER": "verbs"}),
    gpu("ucx", "memory of a simulated GPU over the RDMA transports that UCX selects", "peermem",
        {"GRADRAIL_TEST_RDMA_ONLY": "1", "GRADRAIL_SIMULATED_RDMA": "host"}),  # the test uses the keys of the device
    training("ofi", "MNIST, 1 ps, 2 workers, sync, ofi on verbs: same hash as over tcp, bytes by RDMA", "ofi",
             "over ofi ofi"),
    training("ucx", "the same over ucx", "ucx", "over ucx ucx", environment=UCX_RC),
    Suite("train-gpu", "the same with simulated GPUs, dma-buf into host and GPU memory of the ps: hash as staged",
          job='. "$LAB/jobs/train.sh"; . "$LAB/jobs/train_gpu.sh"; reference --towers 1; over_gpu host; '
              'over_gpu gpu --ps_device gpu:0; exit $failed',
          seconds=400, guests=2, read=results.read_steps, prepare=(small_mnist,), requires=("ofi",), long=True,
          needs=(GRADRAIL, "tests/plugins_1_20/libgradrail_transport_ofi.so", "tests/simulated_hmem/libsimulated_hmem_ofi.so"),
          environment={"BATCH": "1000"}),
    training("ofi-cut", "the cable is cut for a second: no gradient is lost or applied twice", "ofi",
             "disturbed ofi-cut ofi 1 cut", long=True),
    training("ofi-roce-dropped", "only RoCE fails for 6 s: the run continues over tcp and returns; same hash", "ofi",
             "moves ofi-roce ofi", environment={"EPOCHS": "3"}, seconds=500),
    training("ucx-roce-dropped", "the same over ucx", "ucx", "moves ucx-roce ucx", environment={"EPOCHS": "3", **UCX_RC},
             seconds=500),
    training("ofi-loss", "1 % loss of frames and 1 ms of delay: same hash as over tcp", "ofi", "lossy ofi-loss ofi",
             long=True, environment=FEW_STEPS),
    training("ucx-loss", "the same over ucx", "ucx", "lossy ucx-loss ucx", long=True,
             environment={**FEW_STEPS, **UCX_RC}),
    removed("ofi"),
    removed("ucx", UCX_RC),  # with its defaults UCX uses shared memory between two tasks of one host
    keys("ofi", {"GRADRAIL_TEST_OFI_PROVIDER": "verbs"}),
    keys("ucx", UCX_RC),
    Suite("measure", "doctor moves bytes over rxe0, each path has a row, exchanges between two hosts are timed",
          job='. "$LAB/jobs/measure.sh"', seconds=400, guests=2, read=results.read_steps, long=True,
          needs=(GRADRAIL, plugin("ofi"), plugin("ucx")), requires=("ofi", "ucx"), environment=UCX_RC),
    # It takes ten minutes: --only bench-put --limit 1500 --keep.
    Suite("bench-put", "cost of puts over ofi and ucx, compared with libfabric, ucx_perftest and ib_write",
          job='. "$LAB/jobs/put.sh"', seconds=1400, guests=2, read=results.read_steps, asked=True,
          needs=("bench/put", "bench/fi_writedata", plugin("ofi"), plugin("ucx")), requires=("ofi", "ucx"),
          environment={"PUT_GROUPS": "ofi-verbs,ofi-verbs-rxm,ucx-rc",
                       "PUT_FLAGS": "--sizes 8,4K,64K,4M --rounds 3 --seconds 0.5"}),
)
