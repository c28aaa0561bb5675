#include "tools/doctor/proofs/proof.h"

#include <algorithm>

#include "base/clock.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "tools/doctor/proofs/gpu_memory.h"
#include "tools/doctor/text.h"
#include "transport/registry.h"

namespace gradrail::tools::doctor {
namespace {

constexpr size_t kProofBytes = 256 << 10;
/// Limit above those of prove_puts(), with time for CUDA to start.
constexpr Duration kProofDeadline = std::chrono::seconds(60);

/// A place for a proof of a transport.
struct Place {
  std::string device;
  bench::PutTransport open;  ///< options without a name
  bool nic = false;          ///< a network device carries the bytes: GPU memory is worth a try
  std::string why_not;       ///< reason why it cannot be tried
};

std::vector<Place> rdma_places(const Machine& machine) {
  std::vector<Place> places;
  for (const Facts& port : machine.rdma_ports) {
    if (!port.has("active")) continue;
    const std::string interface = port["ip_interface"], address = port["ip_address"];
    Place place{.device = port["name"], .nic = true};
    if (address.empty()) {
      place.why_not =
          "its interface has no IP address, by which both transports find each other: sudo ip address add 10.0.0.1/24 "
          "dev " +
          (interface.empty() ? "INTERFACE (IPoIB: modprobe ib_ipoib)" : interface);
    } else {
      place.device += fmt::format(" ({})", address);
      // rdma_only: a library that uses sockets instead would prove nothing about the device.
      place.open = {.rdma_only = true, .bind_host = address};
    }
    places.push_back(std::move(place));
  }
  return places;
}

std::vector<Place> places_of(const transport::Transport& transport, const std::vector<Place>& rdma) {
  if (transport.same_host_only) return {{.device = "this host"}};
  Place sockets{.device = "127.0.0.1", .open = {.bind_host = "127.0.0.1"}};
  // The provider would otherwise be an RDMA device for this, too, where there is one.
  if (transport.name == "ofi") sockets.open.ofi_provider = "tcp";
  if (!transport.plugin) return {sockets};
  std::vector<Place> places;
  if (!transport.by_name_only) places = rdma;
  places.push_back(sockets);
  places.back().nic = transport.by_name_only;  // an external transport: it has its own limits
  return places;
}

/// "path", whether RDMA, and the time, tab by tab.
absl::StatusOr<std::string> run_proof(const bench::PutTransport& transport) {
  const TimePoint start = Clock::now();
  GRADRAIL_ASSIGN_OR_RETURN(const bench::ProvenPath proven, bench::prove_puts(transport, kProofBytes));
  return fmt::format("{}\t{}\t{:.3f}", proven.path, proven.rdma ? "rdma" : "-", seconds_since(start) * 1e3);
}

absl::Status fill_in(const absl::StatusOr<std::string>& text, Proof& proof) {
  if (!text.ok()) {
    proof.why_not = message_of(text.status());
    return text.status();
  }
  const size_t first = text->find('\t'), second = text->rfind('\t');
  proof.moved = true;
  proof.path = text->substr(0, first);
  proof.rdma = text->substr(first + 1, second - first - 1) == "rdma";
  proof.millis = std::atof(text->c_str() + second + 1);
  return absl::OkStatus();
}

using Tell = std::function<void(const std::string&)>;

class Prover {
 public:
  Prover(const transport::Transport& transport, const Tell& tell, std::vector<Proof>& proofs)
      : transport_(transport), tell_(tell), proofs_(proofs) {}

  void prove_host(const Place& place) {
    Proof proof{
        .transport = transport_.name, .device = place.device, .memory = "host memory", .why_not = place.why_not};
    if (place.why_not.empty()) attempt(place, bench::host_memory, proof).IgnoreError();
    host_moved_ = proof.moved;
    proofs_.push_back(std::move(proof));
  }

  /// Proves GPU memory where host memory was moved. dma-buf is first: it needs no module. The other way follows only if
  /// that fails.
  void prove_gpu(const Place& place, const std::string& gpu) {
    // No copy of GPU memory can succeed where host memory failed, and each attempt can take a minute.
    if (takes_none_ || !host_moved_) return;
    std::vector<absl::Status> refused;
    for (const NicGpuTransfer way : {NicGpuTransfer::dma_buf, NicGpuTransfer::peer_memory}) {
      Proof proof{.transport = transport_.name,
                  .device = place.device,
                  .memory = fmt::format("memory of GPU {} by {}", gpu, name_of(way)),
                  .gpu = true};
      const absl::Status status = attempt(place, gpu_memory(gpu, way), proof);
      proofs_.push_back(std::move(proof));
      if (status.ok()) return;
      refused.push_back(status);
    }
    takes_none_ =
        std::all_of(refused.begin(), refused.end(), [](const absl::Status& s) { return absl::IsUnimplemented(s); });
  }

 private:
  absl::Status attempt(const Place& place, const bench::MakePutMemory& memory, Proof& proof) const {
    tell_(fmt::format("{} over {}: {}", proof.transport, proof.device, proof.memory));
    bench::PutTransport transport = place.open;
    transport.name = transport_.name;
    transport.memory = memory;
    // A library that crashes, blocks or leaves threads behind affects one line of the report only.
    return fill_in(run_in_subprocess([&] { return run_proof(transport); }, {.timeout = kProofDeadline}), proof);
  }

  const transport::Transport& transport_;
  const Tell& tell_;
  std::vector<Proof>& proofs_;
  bool host_moved_ = false;  ///< host memory was moved over the last place
  bool takes_none_ = false;  ///< same answer for every GPU and device: reported once
};

}  // namespace

std::vector<Proof> prove_all(const Machine& machine, const Tell& tell) {
  const std::vector<Place> rdma = rdma_places(machine);
  std::vector<Proof> proofs;
  for (const transport::Transport& transport : transport::transports()) {
    Prover prover(transport, tell, proofs);
    for (const Place& place : places_of(transport, rdma)) {
      prover.prove_host(place);
      for (const Facts& gpu : machine.gpus)
        if (place.nic && place.why_not.empty()) prover.prove_gpu(place, gpu["name"]);
    }
  }
  return proofs;
}

}  // namespace gradrail::tools::doctor
