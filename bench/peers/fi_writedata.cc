// The bare libfabric loop that bench/put over ofi runs against. It has fi_write and fi_writedata with the same loops
// (bench/put/loops.h) without any transport of gradrail. It trusts its peer, checks no bounds, detects no failures.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "bench/put/run.h"
#include "fmt/format.h"
#include "gradrail/clock.h"

namespace gradrail::bench {
namespace {

// Two windows of 64 puts, the largest --window: the loops limit the puts under way before this bound does.
constexpr size_t kPutsUnderWay = 128;
// Some providers use up a posted receive for each notice.
constexpr size_t kReceives = 128;
// The queue has room for all own puts and for all notices of the peer together: an overrun queue is lost.
constexpr size_t kQueueEntries = 1024;
// compare_put.py starts both programs within this time.
constexpr Duration kConnectTime = std::chrono::seconds(30);

struct FabricFlags {
  // The defaults run on each host: tcp needs no device.
  std::string provider = "tcp;ofi_rxm";
  std::string endpoint = "rdm";
  bool unordered = false;
};

absl::Status check_ok(ssize_t result, std::string_view what) {
  if (result >= 0) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("{}: {}", what, fi_strerror(static_cast<int>(-result))));
}

/// The description of our memory that the peer needs.
struct Target {
  uint64_t base = 0;
  uint64_t key = 0;
};

class FabricEnd final : public PutEnd {
 public:
  static absl::StatusOr<std::unique_ptr<PutEnd>> open(const FabricFlags& flags, const std::string& bind_host,
                                                      PairLink& link, size_t bytes) {
    auto end = std::unique_ptr<FabricEnd>(new FabricEnd(bytes, flags.endpoint == "msg"));
    GRADRAIL_RETURN_IF_ERROR(end->find(flags, bind_host));
    GRADRAIL_RETURN_IF_ERROR(end->open_domain());
    GRADRAIL_RETURN_IF_ERROR(end->connects_ ? end->connect(link) : end->introduce(link));
    GRADRAIL_RETURN_IF_ERROR(end->open_memory());
    GRADRAIL_RETURN_IF_ERROR(end->post_receives());
    GRADRAIL_RETURN_IF_ERROR(end->exchange_targets(link));
    return absl::StatusOr<std::unique_ptr<PutEnd>>(std::move(end));
  }

  // The process ends with it: nothing is closed, as libfabric would not close it without its peer either.

  std::string path() const override {
    return fmt::format("{} {}", info_->fabric_attr->prov_name, info_->domain_attr->name);
  }
  std::byte* source(size_t slot) override { return memory_ + slot * bytes_; }
  const std::byte* target(size_t slot) const override { return memory_ + (kSlots + slot) * bytes_; }

  absl::StatusOr<bool> try_put(size_t slot, size_t bytes, std::optional<uint32_t> immediate) override {
    // The completion queue is bounded: it must have room for each put under way.
    if (under_way_ == kPutsUnderWay) return false;
    fi_context2* const context = &contexts_[next_++ % contexts_.size()];
    // Both processes have the same layout: slots of the source, then slots of the target.
    const uint64_t remote = peer_target_.base + (kSlots + slot) * bytes_;
    const ssize_t result =
        immediate ? fi_writedata(endpoint_, source(slot), bytes, descriptor_, *immediate, peer_, remote,
                                 peer_target_.key, context)
                  : fi_write(endpoint_, source(slot), bytes, descriptor_, peer_, remote, peer_target_.key, context);
    if (result == -FI_EAGAIN) return false;
    ++under_way_;
    GRADRAIL_RETURN_IF_ERROR(check_ok(result, "write"));
    return true;
  }

  absl::StatusOr<size_t> poll(absl::Span<uint32_t> arrived) override {
    std::array<fi_cq_data_entry, kBatch> entries;
    const ssize_t count = fi_cq_read(queue_, entries.data(), entries.size());
    if (count == -FI_EAGAIN) return 0;
    if (count < 0) return failure(count);
    size_t notices = 0;
    for (ssize_t i = 0; i < count; ++i) {
      const fi_cq_data_entry& entry = entries[static_cast<size_t>(i)];
      // A completion without remote data is that of an own put.
      if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) {
        --under_way_;
        continue;
      }
      arrived[notices++] = static_cast<uint32_t>(entry.data);
      // Each notice has used a receive of such a provider: its context is free again.
      if (takes_receives_) GRADRAIL_RETURN_IF_ERROR(post_receive(entry.op_context));
    }
    return notices;
  }

 private:
  FabricEnd(size_t bytes, bool connects) : bytes_(bytes), connects_(connects) {}

  absl::Status find(const FabricFlags& flags, const std::string& bind_host) {
    fi_info* const hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA;
    // FI_CONTEXT2: some providers keep their state of an operation in the context that the caller passes.
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | (connects_ ? FI_RX_CQ_DATA : 0);
    hints->ep_attr->type = connects_ ? FI_EP_MSG : FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    // Manual progress: the loop polls, and a thread of the provider would need a second core.
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->cq_data_size = sizeof(uint32_t);
    // Write after write: the notice of a window must not overtake its puts.
    hints->tx_attr->msg_order = flags.unordered ? 0 : FI_ORDER_WAW;
    hints->rx_attr->msg_order = hints->tx_attr->msg_order;
    // A completion without order must mean that the bytes have arrived: the notice then follows all of them.
    if (flags.unordered) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(flags.provider.c_str());
    const bool anywhere = bind_host.empty();
    const int error = fi_getinfo(FI_VERSION(1, 17), anywhere ? nullptr : bind_host.c_str(), anywhere ? nullptr : "0",
                                 anywhere ? 0 : FI_SOURCE, hints, &info_);
    return check_ok(error, "find provider " + flags.provider);
  }

  absl::Status open_domain() {
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "open fabric"));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_domain(fabric_, info_, &domain_, nullptr), "open domain"));
    fi_cq_attr queue{};
    queue.size = kQueueEntries;
    queue.format = FI_CQ_FORMAT_DATA;
    // The loops spin. A queue that can wake a thread may cost a system call for each completion.
    queue.wait_obj = FI_WAIT_NONE;
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_cq_open(domain_, &queue, &queue_, nullptr), "open completion queue"));
    // The defaults of some providers take megabytes; twice the puts under way suffice.
    info_->tx_attr->size = std::min(info_->tx_attr->size, 2 * kPutsUnderWay);
    info_->rx_attr->size = std::min(info_->rx_attr->size, 2 * kReceives);
    takes_receives_ = (info_->mode & FI_RX_CQ_DATA) != 0;
    return absl::OkStatus();
  }

  absl::Status make_endpoint(fi_info* info, fid* beside) {
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_endpoint(domain_, info, &endpoint_, nullptr), "open endpoint"));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_ep_bind(endpoint_, beside, 0), "bind"));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "bind queue"));
    return check_ok(fi_enable(endpoint_), "enable");
  }

  /// Endpoints of datagrams, reliable: each gets the other's address.
  absl::Status introduce(PairLink& link) {
    fi_av_attr attributes{};
    attributes.type = FI_AV_TABLE;
    attributes.count = 1;
    fid_av* addresses = nullptr;
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_av_open(domain_, &attributes, &addresses, nullptr), "open address table"));
    GRADRAIL_RETURN_IF_ERROR(make_endpoint(info_, &addresses->fid));
    std::array<char, 256> name{};
    size_t bytes = name.size();
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_getname(&endpoint_->fid, name.data(), &bytes), "address"));
    GRADRAIL_RETURN_IF_ERROR(link.say({name.data(), bytes}));
    GRADRAIL_ASSIGN_OR_RETURN(const std::string theirs, link.hear([] {}));
    const int inserted = fi_av_insert(addresses, theirs.c_str(), 1, &peer_, 0, nullptr);
    return inserted == 1 ? absl::OkStatus() : absl::UnavailableError("insert address");
  }

  /// Connects endpoints: the leader sends the request, the other one listens.
  absl::Status connect(PairLink& link) {
    fi_eq_attr attributes{};
    attributes.wait_obj = FI_WAIT_UNSPEC;
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_eq_open(fabric_, &attributes, &events_, nullptr), "open event queue"));
    return link.leads() ? ask(link) : answer(link);
  }

  absl::Status ask(PairLink& link) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::string address, link.hear([] {}));
    // malloc(): libfabric frees the field.
    info_->dest_addr = std::malloc(address.size());
    std::memcpy(info_->dest_addr, address.data(), address.size());
    info_->dest_addrlen = address.size();
    GRADRAIL_RETURN_IF_ERROR(make_endpoint(info_, &events_->fid));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_connect(endpoint_, address.data(), nullptr, 0), "connect"));
    return await(FI_CONNECTED).status();
  }

  absl::Status answer(PairLink& link) {
    fid_pep* listener = nullptr;
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_passive_ep(fabric_, info_, &listener, nullptr), "open listening endpoint"));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_pep_bind(listener, &events_->fid, 0), "bind"));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_listen(listener), "listen"));
    std::array<char, 256> name{};
    size_t bytes = name.size();
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_getname(&listener->fid, name.data(), &bytes), "address"));
    GRADRAIL_RETURN_IF_ERROR(link.say({name.data(), bytes}));
    GRADRAIL_ASSIGN_OR_RETURN(fi_info* const asked, await(FI_CONNREQ));
    GRADRAIL_RETURN_IF_ERROR(make_endpoint(asked, &events_->fid));
    GRADRAIL_RETURN_IF_ERROR(check_ok(fi_accept(endpoint_, nullptr, 0), "accept"));
    return await(FI_CONNECTED).status();
  }

  absl::StatusOr<fi_info*> await(uint32_t wanted) {
    fi_eq_cm_entry entry{};
    uint32_t event = 0;
    const int milliseconds =
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(kConnectTime).count());
    const ssize_t got = fi_eq_sread(events_, &event, &entry, sizeof(entry), milliseconds, 0);
    GRADRAIL_RETURN_IF_ERROR(check_ok(got, "wait for the other endpoint"));
    if (event != wanted) return absl::UnavailableError(fmt::format("connection event {} instead of {}", event, wanted));
    return entry.info;
  }

  absl::Status open_memory() {
    const size_t size = 2 * kSlots * bytes_;
    memory_ = static_cast<std::byte*>(
        // MAP_POPULATE: page faults must not be timed.
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    const auto mode = static_cast<uint64_t>(info_->domain_attr->mr_mode);
    fid_mr* region = nullptr;
    // Sources, targets and receives share one region: providers with FI_MR_LOCAL need a descriptor for each of them.
    const uint64_t access = FI_READ | FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_WRITE;
    GRADRAIL_RETURN_IF_ERROR(
        check_ok(fi_mr_reg(domain_, memory_, size, access, 0, 1, 0, &region, nullptr), "register memory"));
    descriptor_ = fi_mr_desc(region);
    target_.key = fi_mr_key(region);
    // Some providers address remote memory by its virtual address, others by the offset in the region.
    target_.base = (mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<uint64_t>(memory_) : 0;
    return absl::OkStatus();
  }

  absl::Status post_receives() {
    if (!takes_receives_) return absl::OkStatus();
    for (fi_context2& context : receives_) GRADRAIL_RETURN_IF_ERROR(post_receive(&context));
    return absl::OkStatus();
  }

  absl::Status post_receive(void* context) {
    return check_ok(fi_recv(endpoint_, memory_, 0, descriptor_, FI_ADDR_UNSPEC, context), "post a receive");
  }

  absl::Status exchange_targets(PairLink& link) {
    GRADRAIL_RETURN_IF_ERROR(link.say({reinterpret_cast<const char*>(&target_), sizeof(target_)}));
    GRADRAIL_ASSIGN_OR_RETURN(const std::string theirs, link.hear([] {}));
    if (theirs.size() != sizeof(peer_target_)) return absl::DataLossError("the other process is another program");
    std::memcpy(&peer_target_, theirs.data(), sizeof(peer_target_));
    return absl::OkStatus();
  }

  absl::Status failure(ssize_t result) {
    fi_cq_err_entry entry{};
    // FI_EAVAIL only states that an error entry exists; the entry has the cause.
    if (result == -FI_EAVAIL && fi_cq_readerr(queue_, &entry, 0) > 0) result = -entry.err;
    return check_ok(result, "completion");
  }

  const size_t bytes_;
  const bool connects_;
  bool takes_receives_ = false;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_eq* events_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::byte* memory_ = nullptr;
  void* descriptor_ = nullptr;
  Target target_;
  Target peer_target_;
  size_t under_way_ = 0;
  size_t next_ = 0;
  std::array<fi_context2, 2 * kPutsUnderWay> contexts_{};
  std::array<fi_context2, kReceives> receives_{};
};

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  gradrail::bench::FabricFlags fabric;
  gradrail::bench::PutFlags flags;
  CLI::App app("Bare libfabric: the loops of bench/put with fi_writedata alone", "fi_writedata");
  app.add_option("--provider", fabric.provider, "libfabric's name for it")->capture_default_str();
  app.add_option("--endpoint", fabric.endpoint, "rdm or msg")
      ->capture_default_str()
      ->check(CLI::IsMember({"rdm", "msg"}));
  app.add_flag("--unordered", fabric.unordered, "for providers that promise no order: completion means delivered");
  gradrail::bench::add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  return gradrail::bench::run_puts("bare fi_writedata", flags, [&](auto& link, size_t bytes) {
    return gradrail::bench::FabricEnd::open(fabric, flags.bind_host, link, bytes);
  });
}
