#!/usr/bin/env python3
"""Compares `gradrail predict` with csg-htsim, a simulator of packets, for N senders that push B bytes to one receiver.

htsim.py FOLDER [--binary FILE] [--source URL] [--commit HASH] [--seeds N]

FOLDER must be outside of a repository. It receives a clone of htsim, its library, and a small program over it. Needs git,
make, g++. Each sender has a NIC of 100 Gbit/s; one port of a switch with a queue leads to the NIC of the receiver. htsim
counts the time from the first SYN to the last acknowledgment. The prediction is half of the step of one bucket, in which
equal bytes return, without costs of threads. Both carry the same packets of 1500 bytes.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

SOURCE = "https://github.com/Broadcom/csg-htsim"
COMMIT = "841d9e7be46bb968eece766aa4b6c044c7799f67"
GBIT, RTT_US, PACKET, HEADERS = 100, 10, 1500, 52
OURS = 64 + 2 * 48  # bytes of a bucket beside its elements: its header, and those of two frames
MARK = 150_000  # DCTCP: queue at which packets are marked
SENDERS = (64, 128, 256, 512)
SIZES = (256 << 10, 1 << 20)
CASES = (("dctcp", 2 << 20), ("dctcp", 1 << 30), ("tcp", 2 << 20), ("tcp", 1 << 30))  # control, queue of the port

PROGRAM = r"""
#include <cstring>
#include <iostream>
#include "clock.h"
#include "config.h"
#include "dctcp.h"
#include "ecnqueue.h"
#include "eventlist.h"
#include "network.h"
#include "pipe.h"
#include "queue.h"
#include "tcp.h"
#include "tcppacket.h"

template <class Source>
class Sender : public Source {
 public:
  Sender(EventList& events, uint64_t bytes, int& open) : Source(NULL, NULL, events), bytes_(bytes), open_(open) {
    this->set_flowsize(bytes);
    this->set_ssthresh(0xffffffff);
  }
  virtual void receivePacket(Packet& packet) {
    Source::receivePacket(packet);
    if (finished == 0 && this->_last_acked > bytes_) {
      finished = this->eventlist().now();
      --open_;
    }
  }
  simtime_picosec finished = 0;

 private:
  uint64_t bytes_;
  int& open_;
};

template <class Source>
void run(int count, uint64_t bytes, double gbit, double rtt_us, mem_b queue, mem_b mark) {
  EventList& events = EventList::getTheEventList();
  int open = count;
  const linkspeed_bps rate = speedFromMbps(gbit * 1000);
  Pipe to(timeFromUs(rtt_us / 2), events), back(timeFromUs(rtt_us / 2), events);
  ECNQueue port(rate, queue, events, NULL, mark);
  TcpRtxTimerScanner timers(timeFromMs(1), events);
  vector<Sender<Source>*> senders;
  for (int i = 0; i < count; ++i) {
    auto* sender = new Sender<Source>(events, bytes, open);
    auto* sink = new TcpSink();
    timers.registerTcp(*sender);
    Route *out = new Route(), *in = new Route();
    out->push_back(new Queue(rate, mem_b(1) << 40, events, NULL));
    out->push_back(&port);
    out->push_back(&to);
    out->push_back(sink);
    in->push_back(&back);
    in->push_back(sender);
    sender->connect(*out, *in, *sink, drand() * timeFromUs(1.0));
    senders.push_back(sender);
  }
  while (open > 0 && events.doNextEvent()) {
  }
  simtime_picosec last = 0;
  for (auto* sender : senders) last = max(last, sender->finished);
  cerr << timeAsMs(last) << " " << port.num_drops() << " " << open << endl;
}

int main(int, char** a) {  // control, senders, bytes, Gbit/s, us, bytes of the queue, bytes of the mark, bytes of a packet, seed
  Packet::set_packet_size(atoi(a[8]));
  srand(atoi(a[9]));
  EventList::getTheEventList().setEndtime(timeFromSec(1000));
  const auto simulate = strcmp(a[1], "dctcp") == 0 ? run<DCTCPSrc> : run<TcpSrc>;
  simulate(atoi(a[2]), atoll(a[3]), atof(a[4]), atof(a[5]), atoll(a[6]), atoll(a[7]));
}
"""


def build(folder, source, commit):
    """Clones htsim, and builds the program over its library."""
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["git", "-C", folder, "rev-parse"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        raise SystemExit(f"{folder}: is in a git repository; name a folder outside of it")
    clone, program = folder / "csg-htsim", folder / "incast"
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", source, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", commit], check=True)
    subprocess.run(["make", "-C", clone / "sim", "libhtsim.a"], stdout=subprocess.DEVNULL, check=True)
    program.with_suffix(".cpp").write_text(PROGRAM)
    subprocess.run(["g++", "-O2", "-std=c++11", f"-I{clone}/sim", program.with_suffix(".cpp"), clone / "sim/libhtsim.a", "-o",
                    program], check=True)
    return program


def packets(size):
    return math.ceil((size + OURS) / (PACKET - HEADERS))


def simulate(program, control, queue, senders, size, seed):
    """Milliseconds until the last acknowledgment, and the packets that the port has dropped."""
    command = [program, control, senders, packets(size) * PACKET, GBIT, RTT_US, queue, MARK, PACKET, seed]
    ran = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    milliseconds, dropped, unfinished = ran.stderr.split()
    if unfinished != "0":
        raise RuntimeError(f"{command}: {unfinished} senders have not finished")
    return float(milliseconds), int(dropped)


def figure(path, size):
    times = dict.fromkeys(("min_us", "max_us", "p50_us", "mean_us", "stdev_us", "p99_us", "p999_us"), 0)
    return {"path": path, "what": "", "size": size, "count": 1, "type": "float", "percentiles": {"iterations": 1, **times},
            "distribution_us": [], "rounds_us": [], "alg_bytes": 1, "bus_bytes": 1, "nwrong": 0, "failed": "", "why": "",
            "stages": [], "more": {}}


def predict(binary, senders, size):
    """Milliseconds of the pushes alone."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as costs:
        rows = [figure(f"sgd, {count} fp32, 0 targets", 1 << 20) for count in ("1 gradient", "4 gradients")]
        json.dump({"config": {}, "machine": {}, "results": rows}, costs)
        costs.flush()
        command = [binary, "predict", "--json", "--workers", senders, "--ps", 1, "--model", size, "--bucket_kib", size >> 10,
                   "--nic", GBIT, "--rtt", RTT_US, "--frame_bytes", 0, "--mtu", PACKET, "--transport", "rdma", "--costs",
                   costs.name, "--message_us", 0, "--memory", 1e6, "--packets_per_ack", 1e6, "--warmup", 1, "--steps", 3]
        ran = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout)["step_time_s"]["median"] * 1e3 / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--binary", default="build/release/bin/gradrail")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--seeds", type=int, default=3, help="runs of htsim; their median counts")
    flags = parser.parse_args()
    program = build(flags.folder.resolve(), flags.source, flags.commit)
    rows = []
    for size in SIZES:
        for senders in SENDERS:
            predicted = predict(os.path.abspath(flags.binary), senders, size)
            for control, queue in CASES:
                runs = [simulate(program, control, queue, senders, size, seed) for seed in range(1, flags.seeds + 1)]
                rows.append((control, queue, senders, size, predicted, statistics.median(ms for ms, _ in runs),
                             statistics.median(dropped for _, dropped in runs)))
    rows.sort(key=lambda row: -abs(math.log(row[4] / row[5])))
    print(f"{'control':<8} {'queue KiB':>9} {'senders':>8} {'KiB each':>9} {'predict ms':>11} {'htsim ms':>9} "
          f"{'predict/htsim':>13} {'dropped':>8}")
    for control, queue, senders, size, predicted, simulated, dropped in rows:
        print(f"{control:<8} {queue >> 10:>9} {senders:>8} {size >> 10:>9} {predicted:11.3f} {simulated:9.3f} "
              f"{predicted / simulated:13.3f} {dropped:>8.0f}")


if __name__ == "__main__":
    main()
