#include "transport/ofi/provider.h"

#include <arpa/inet.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/ofi/gpu/support.h"
#include "transport/ofi/native_error.h"
#include "transport/rdma_devices.h"

namespace gradrail::transport::ofi {
namespace {

constexpr std::array<std::string_view, 6> kRdma = {"verbs", "efa", "cxi", "psm3", "opx", "psm2"};
/// Entries of an endpoint's queues: more than one connection can have under way (kPiecesInFlight, kReceives).
constexpr size_t kQueueEntries = 256;
constexpr size_t kPiecesInFlight = 128;
/// Largest piece. A longer one would save nothing, and other transfers wait for it.
constexpr size_t kPieceBytes = 64 << 20;
constexpr uint64_t kOrder = FI_ORDER_SAS | FI_ORDER_WAW;

std::string_view first_part(std::string_view name) { return name.substr(0, name.find(';')); }

Info make_hints(const OpenOptions& options, fi_ep_type type, bool ordered) {
  Info hints(fi_allocinfo());
  if (hints == nullptr) return hints;
  hints->caps = FI_MSG | FI_RMA;
  // Operation begins with an fi_context2 for the provider's own data (endpoint.h).
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  if (type == FI_EP_MSG) hints->mode |= FI_RX_CQ_DATA;
  hints->ep_attr->type = type;
  // All modes that this code serves: the provider answers with those that it needs (fi_getinfo(3)).
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED | FI_MR_ENDPOINT;
  // The owner thread alone uses a domain, so the provider needs no locks. Its poll() makes the progress.
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->cq_data_size = sizeof(uint32_t);
  hints->tx_attr->msg_order = ordered ? kOrder : FI_ORDER_SAS;
  hints->rx_attr->msg_order = hints->tx_attr->msg_order;
  if (!options.ofi_provider.empty()) hints->fabric_attr->prov_name = strdup(options.ofi_provider.c_str());
  return hints;
}

/// The address of an interface as text; "" where the device has none of IP.
std::string source_text(const fi_info& info) {
  if (info.src_addr == nullptr) return "";
  const auto* address = static_cast<const sockaddr*>(info.src_addr);
  const bool ip =
      info.addr_format == FI_SOCKADDR || info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6;
  if (!ip) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

/// Addresses of a host name; empty if any device is possible.
std::set<std::string> wanted_addresses(const std::string& host) {
  std::set<std::string> wanted;
  if (host.empty()) return wanted;
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  if (!found.ok()) return wanted;
  for (const NetAddress& address : *found) {
    if (!address.is_loopback() && !address.is_any()) {
      const std::string host_text = address.host();
      wanted.insert(host_text.substr(0, host_text.find('%')));  // format of source_text()
    }
  }
  return wanted;
}

struct Choice {
  const fi_info* best = nullptr;
  std::set<std::string> others;     ///< other providers, for people
  std::set<std::string> elsewhere;  ///< requested providers with devices that have other addresses
};

/// Neither kind of endpoint serves all. efa, cxi, opx, psm3 and shm have FI_EP_RDM alone. verbs has FI_EP_MSG; through
/// ofi_rxm it has FI_EP_RDM with the same order of writes, the same completion data and writes by the device, but:
///  - ofi_rxm admits any process that reaches its port to the protection domain of the peer. Keys of verbs are easy to
///    guess there. With FI_EP_MSG only the peer is admitted, by the token of its hello (Endpoint::next_event).
///  - ofi_rxm, up to libfabric 2.6, takes the description of a dma-buf for an iovec when it registers GPU memory.
///  - Each write passes another pool of buffers and another completion queue, and an endpoint with messages under way
///    may crash at its end (Provider::lingers).
struct Attempt {
  fi_ep_type type = FI_EP_RDM;
  bool ordered = true;
};
constexpr std::array<Attempt, 3> kAttempts = {{{FI_EP_MSG, true}, {FI_EP_RDM, true}, {FI_EP_RDM, false}}};

absl::StatusOr<Info> ask(const OpenOptions& options, Attempt attempt, bool device_memory = false) {
  const Info hints = make_hints(options, attempt.type, attempt.ordered);
  if (hints == nullptr) return native_error("fi_allocinfo", FI_ENOMEM);
  if (device_memory) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  const uint32_t version = device_memory ? gpu_api_version() : FI_VERSION(1, 17);
  fi_info* list = nullptr;
  const int error = fi_getinfo(version, nullptr, nullptr, 0, hints.get(), &list);
  // FI_ENODATA: no provider fits these hints. The next attempt may find one.
  if (error != 0 && error != -FI_ENODATA) return native_error("fi_getinfo", -error);
  return Info(list);
}

bool is_wanted(std::string_view name, const OpenOptions& options) {
  if (options.rdma_only && !is_rdma_provider(name)) return false;
  if (options.ofi_provider.empty()) return provider_rank(name) != kOnlyByName;
  return provider_matches(name, options.ofi_provider);
}

/// Whether an address is link-local: it needs a scope that a peer does not have.
bool is_link_local(const std::string& source) { return source.starts_with("fe80"); }

/// Devices with an IP address that peers can reach.
std::set<std::string> addressed_devices(const fi_info* list) {
  std::set<std::string> devices;
  for (const fi_info* info = list; info != nullptr; info = info->next) {
    const std::string source = source_text(*info);
    if (!source.empty() && !is_link_local(source)) devices.insert(info->domain_attr->name);
  }
  return devices;
}

Choice choose(const fi_info* list, const OpenOptions& options, fi_ep_type type) {
  const std::set<std::string> wanted = wanted_addresses(options.bind_host);
  const std::set<std::string> addressed = addressed_devices(list);
  Choice choice;
  int best_rank = 0;
  for (const fi_info* info = list; info != nullptr; info = info->next) {
    const std::string name = info->fabric_attr->prov_name;
    if (type == FI_EP_MSG && name != "verbs") continue;
    if (!is_wanted(name, options)) {
      choice.others.insert(name);
      continue;
    }
    const std::string source = source_text(*info);
    // verbs also lists each device with its address of InfiniBand. The IP addresses decide where a device has some.
    if (source.empty() && !wanted.empty() && addressed.contains(info->domain_attr->name)) continue;
    if (!source.empty() && (wanted.empty() ? is_link_local(source) : wanted.count(source) == 0)) {
      choice.elsewhere.insert(fmt::format("{} on {} {}", name, info->domain_attr->name, source));
      continue;
    }
    const int rank = provider_rank(name);
    if (choice.best != nullptr && rank >= best_rank) continue;
    choice.best = info;
    best_rank = rank;
  }
  return choice;
}

Provider describe(const fi_info& found, bool ordered) {
  Provider provider;
  provider.info.reset(fi_dupinfo(&found));
  fi_info& info = *provider.info;
  const auto mode = static_cast<uint64_t>(info.domain_attr->mr_mode);
  provider.name = info.fabric_attr->prov_name;
  provider.device = info.domain_attr->name;
  provider.rdma = is_rdma_provider(provider.name);
  provider.separate_notices = first_part(provider.name) == "tcp";
  const bool shared_receives = first_part(provider.name) == "tcp";  // shared receives are not posted to the endpoint
  provider.lingers = provider.name == "shm" || (provider.name.find("ofi_rxm") != std::string::npos && !shared_receives);
  provider.connects = info.ep_attr->type == FI_EP_MSG;
  provider.ordered = ordered && info.ep_attr->max_order_waw_size > 0;
  provider.confirms_writes = !provider.ordered || first_part(provider.name) == "tcp";
  provider.notices_take_receives = ((info.mode | info.rx_attr->mode) & FI_RX_CQ_DATA) != 0;
  provider.needs_descriptors = (mode & FI_MR_LOCAL) != 0;
  provider.virtual_addresses = (mode & FI_MR_VIRT_ADDR) != 0;
  provider.chooses_keys = (mode & FI_MR_PROV_KEY) != 0;
  provider.binds_regions = (mode & FI_MR_ENDPOINT) != 0;
  // Full keys are a separate case, because a shift by 64 bits is undefined.
  const size_t key_bytes = info.domain_attr->mr_key_size;
  provider.key_mask = key_bytes >= sizeof(uint64_t) ? UINT64_MAX : (uint64_t{1} << (8 * key_bytes)) - 1;
  provider.immediate_bits = static_cast<int>(std::min<size_t>(8 * info.domain_attr->cq_data_size, 64));
  provider.piece_bytes = std::min(info.ep_attr->max_msg_size, kPieceBytes);
  // The order of writes holds up to this size alone.
  if (provider.ordered) provider.piece_bytes = std::min(provider.piece_bytes, info.ep_attr->max_order_waw_size);
  info.tx_attr->size = std::min(info.tx_attr->size, kQueueEntries);
  info.rx_attr->size = std::min(info.rx_attr->size, kQueueEntries);
  provider.pieces_in_flight = std::min(info.tx_attr->size, kPiecesInFlight);
  return provider;
}

bool is_same_device(const fi_info& one, const fi_info& other) {
  const auto same = [](const char* a, const char* b) { return std::string_view(a) == b; };
  return same(one.fabric_attr->prov_name, other.fabric_attr->prov_name) &&
         same(one.domain_attr->name, other.domain_attr->name) && source_text(one) == source_text(other);
}

/// Providers that move GPU memory too, but by copies of CUDA's in the loop that drives them, when they choose so.
constexpr std::array<std::string_view, 4> kCopyGpuMemory = {"shm", "psm2", "psm3", "opx"};

/// Applied afterwards, to the device that was chosen without it. GPU memory never changes the choice of the device, and
/// a host without a GPU uses the device as before.
Provider with_gpu_memory(Provider plain, const OpenOptions& options, Attempt attempt) {
  if (const std::string why = why_no_gpu_memory(); !why.empty()) {
    plain.gpu = GpuTransferSupport::none(why);
    return plain;
  }
  if (std::find(kCopyGpuMemory.begin(), kCopyGpuMemory.end(), first_part(plain.name)) != kCopyGpuMemory.end()) {
    plain.gpu = GpuTransferSupport::none(fmt::format(kWouldCopy, plain.name));
    return plain;
  }
  const absl::StatusOr<Info> list = ask(options, attempt, /*device_memory=*/true);
  for (const fi_info* info = list.ok() ? list->get() : nullptr; info != nullptr; info = info->next) {
    if ((info->caps & FI_HMEM) == 0 || !is_same_device(*info, *plain.info)) continue;
    Provider provider = describe(*info, attempt.ordered);
    provider.device_memory = true;
    provider.gpu = gpu_transfers();
    return provider;
  }
  const bool verbs = first_part(plain.name) == "verbs";
  plain.gpu = GpuTransferSupport::none(
      fmt::format("moves host memory only: libfabric's provider {} offers no FI_HMEM on {}{}", plain.name, plain.device,
                  verbs ? " (it requires an mlx5 device, and nvidia_peermem or a kernel with dma-buf)" : ""));
  return plain;
}

/// Whether libfabric has the requested provider, with any features.
bool is_there(const std::string& name) {
  const Info hints(fi_allocinfo());
  if (name.empty() || hints == nullptr) return false;
  hints->fabric_attr->prov_name = strdup(name.c_str());
  fi_info* list = nullptr;
  const bool found = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &list) == 0;
  const Info owner(list);
  return found;
}

absl::Status nothing(const OpenOptions& options, const Choice& choice) {
  std::string wanted = options.rdma_only ? "no RDMA provider" : "no provider";
  if (!options.ofi_provider.empty()) wanted += fmt::format(" '{}'", options.ofi_provider);
  if (!choice.elsewhere.empty()) {
    return absl::UnavailableError(fmt::format("ofi: libfabric has {} for the address {} (there is {})", wanted,
                                              options.bind_host.empty() ? "any" : options.bind_host,
                                              fmt::join(choice.elsewhere, ", ")));
  }
  if (is_there(options.ofi_provider) && !options.rdma_only) {
    return absl::UnavailableError(
        fmt::format("ofi: libfabric's provider '{}' cannot write into a peer's memory (FI_RMA), or lacks a required "
                    "feature: choose one of {}",
                    options.ofi_provider, fmt::join(choice.others, ", ")));
  }
  const bool wants_device = options.rdma_only || is_rdma_provider(options.ofi_provider);
  return absl::UnavailableError(
      fmt::format("ofi: libfabric has {} here{}{} (there is {})", wanted, wants_device ? ": " : "",
                  wants_device ? describe_rdma_devices() : "",
                  choice.others.empty() ? "none at all" : fmt::format("{}", fmt::join(choice.others, ", "))));
}

}  // namespace

bool Provider::may_be_used_here() const {
  static std::atomic<pid_t> first_user = 0;  // user of this memory, which a fork copies
  if (!rdma) return true;
  pid_t no_process = 0;
  return first_user.compare_exchange_strong(no_process, getpid()) || no_process == getpid();
}

void prepare_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("FI_UNIVERSE_SIZE", "4", 0);  // an endpoint here has one peer; ofi_rxm may hold two links to it for a moment
    setenv("FI_MR_CACHE_MONITOR", "disabled", 0);
    setenv("FI_HMEM_CUDA_USE_DMABUF", "0", 0);
    // ofi_rxm's buffers, of each endpoint: 64 MB by default, where 256 of 8 KiB hold all that we send at a time.
    setenv("FI_OFI_RXM_MSG_RX_SIZE", "256", 0);
    setenv("FI_OFI_RXM_MSG_TX_SIZE", "256", 0);
    setenv("FI_OFI_RXM_BUFFER_SIZE", "8192", 0);
  });
}

bool is_rdma_provider(std::string_view name) {
  if (name.find("ofi_rxd") != std::string_view::npos) return false;  // datagrams: the device writes nothing by itself
  return std::find(kRdma.begin(), kRdma.end(), first_part(name)) != kRdma.end();
}

int provider_rank(std::string_view name) {
  if (name.find("ofi_rxd") != std::string_view::npos) return kOnlyByName;  // reliable datagrams in software: slow
  const auto place = std::find(kRdma.begin(), kRdma.end(), first_part(name));
  if (place != kRdma.end()) return static_cast<int>(place - kRdma.begin());
  if (name == "tcp;ofi_rxm" || name == "tcp") return 10;
  if (name == "shm") return 11;
  return kOnlyByName;
}

bool provider_matches(std::string_view name, std::string_view wanted) {
  return name == wanted || (wanted.find(';') == std::string_view::npos && first_part(name) == wanted);
}

absl::StatusOr<Provider> choose_provider(const OpenOptions& options) {
  prepare_environment();
  Choice seen;
  for (const Attempt& attempt : kAttempts) {
    GRADRAIL_ASSIGN_OR_RETURN(const Info list, ask(options, attempt));
    Choice choice = choose(list.get(), options, attempt.type);
    if (choice.best != nullptr) return with_gpu_memory(describe(*choice.best, attempt.ordered), options, attempt);
    seen.others.merge(choice.others);
    seen.elsewhere.merge(choice.elsewhere);
  }
  if (seen.others.empty() && !options.ofi_provider.empty()) {  // the answer then names the providers of this host
    const absl::StatusOr<Info> list = ask({}, {FI_EP_RDM, true});
    if (list.ok()) seen.others = choose(list->get(), options, FI_EP_RDM).others;
  }
  return nothing(options, seen);
}

}  // namespace gradrail::transport::ofi
