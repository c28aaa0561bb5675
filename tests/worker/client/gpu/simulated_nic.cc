// A transport that takes GPU memory, for the simulated driver: tcp, with its sockets as the network device. Like a
// device it accesses GPU memory through the dma-buf and not through the address. It reports its writes to the driver.
// $GRADRAIL_SIMULATED_NIC holds faults.
//   refuse    registering GPU memory fails.
//   damage    reads and writes of GPU memory access other memory: all calls succeed, and the bytes are wrong.
//   host      it takes host memory only.
//   wrong_source   reads of read-only memory access other memory.
//   early     each connection that was opened here receives a notice of bucket 0 directly behind the shard's Active.
//   lose=N    each connection that was opened here is lost after N notifications.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/gpu_memory.h"
#include "base/status.h"
#include "transport/builtin_plugin.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::simulated_nic {
namespace {

std::string_view faults() {
  const char* words = std::getenv("GRADRAIL_SIMULATED_NIC");
  return words == nullptr ? "" : words;
}

bool has_fault(std::string_view word) { return faults().find(word) != std::string_view::npos; }

/// Notices that come before connections are lost.
uint64_t notices_until_loss() {
  constexpr std::string_view kWord = "lose=";
  const size_t at = faults().find(kWord);
  return at == std::string_view::npos ? UINT64_MAX : std::strtoull(faults().data() + at + kWord.size(), nullptr, 10);
}

/// A device's view of memory of a GPU.
class Window {
 public:
  static absl::StatusOr<Window> open(const MemorySpan& memory, Access access) {
    if (has_fault("refuse")) return absl::InvalidArgumentError("simnic: the card refuses this memory");
    const bool is_damaged = has_fault("damage") || (has_fault("wrong_source") && access == Access::local);
    if (is_damaged) return map(memory.bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory.gpu->way() == NicGpuTransfer::peer_memory) return Window(nullptr, 0, memory.data);
    GRADRAIL_ASSIGN_OR_RETURN(const DmaBuf exported, memory.gpu->export_dma_buf(memory.data, memory.bytes));
    if (exported.offset + memory.bytes > exported.bytes) return absl::InternalError("simnic: the dma-buf is short");
    return map(exported.bytes, MAP_SHARED, exported.fd.get(), exported.offset);
  }
  Window(Window&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_), data_(other.data_) {}
  Window& operator=(Window&&) = delete;
  ~Window() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  Window(void* base, size_t bytes, std::byte* data) : base_(base), bytes_(bytes), data_(data) {}

  static absl::StatusOr<Window> map(size_t bytes, int flags, int fd, size_t offset) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) return absl::InternalError("simnic: the dma-buf cannot be mapped");
    return Window(base, bytes, static_cast<std::byte*>(base) + offset);
  }

  void* base_;
  size_t bytes_;
  std::byte* data_;
};

class NicContext final : public Context {
 public:
  explicit NicContext(std::unique_ptr<Context> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return "simnic"; }
  Capabilities capabilities() const override {
    Capabilities result = inner_->capabilities();
    if (!has_fault("host")) result.gpu = GpuTransferSupport::none("");
    return result;
  }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override {
    if (memory.kind == MemoryKind::host) return inner_->register_memory(memory, access);
    GRADRAIL_ASSIGN_OR_RETURN(Window window, Window::open(memory, access));
    windows_.push_back(std::move(window));
    gpu_memory_.push_back(memory.data);
    return inner_->register_memory({.data = windows_.back().data(), .bytes = memory.bytes}, access);
  }
  absl::StatusOr<std::string> listen(const std::string& address) override { return inner_->listen(address); }
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override {
    absl::StatusOr<Connection*> connected = inner_->connect(address, deadline);
    if (connected.ok()) opened_.push_back(*connected);
    return connected;
  }
  void close(Connection* connection) override {
    std::erase(opened_, connection);
    messages_.erase(connection);
    inner_->close(connection);
  }
  size_t poll(absl::Span<Completion> out) override {
    if (notices_ >= loss_after_ && !opened_.empty()) return lose(out);
    // The last place is left to an early notice.
    const size_t count = inner_->poll(is_early_ ? out.first(out.size() - 1) : out);
    Connection* activated = nullptr;
    for (const Completion& completion : out.first(count)) {
      // A shard's messages are Challenge, Welcome and Active.
      const bool is_message = completion.kind == Completion::Kind::message;
      if (is_message && ++messages_[completion.connection] == 3) activated = completion.connection;
      if (completion.kind != Completion::Kind::put_arrived) continue;
      ++notices_;
      tell_driver();
    }
    if (!is_early_ || activated == nullptr) return count;
    out[count] = {.kind = Completion::Kind::put_arrived, .connection = activated};
    return count + 1;
  }
  int wait_fd() const override { return inner_->wait_fd(); }
  bool arm() override { return (notices_ < loss_after_ || opened_.empty()) && inner_->arm(); }

 private:
  size_t lose(absl::Span<Completion> out) {
    size_t count = 0;
    for (; count < out.size() && !opened_.empty(); opened_.pop_back()) {
      out[count++] = {.kind = Completion::Kind::peer_lost,
                      .connection = opened_.back(),
                      .cause = absl::UnavailableError("the simulated card was pulled out")};
    }
    return count;
  }

  void tell_driver() const {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    static const auto wrote = reinterpret_cast<void (*)(const void*)>(
        driver == nullptr ? nullptr : dlsym(driver, "gradrail_simulated_nic_wrote"));
    for (const std::byte* memory : gpu_memory_) {
      if (wrote != nullptr) wrote(memory);
    }
  }

  std::vector<Window> windows_;  ///< behind regions, which end before the context
  std::vector<const std::byte*> gpu_memory_;
  std::vector<Connection*> opened_;      ///< by us, and not lost
  std::map<Connection*, int> messages_;  ///< arrived, by connection
  uint64_t notices_ = 0;
  const uint64_t loss_after_ = notices_until_loss();
  const bool is_early_ = has_fault("early");
  std::unique_ptr<Context> inner_;
};

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Context> inner, tcp::open(options));
  return std::make_unique<NicContext>(std::move(inner));
}

constexpr BuiltinPlugin kPlugin{.library = "a network device for simulated GPUs", .open = open};

}  // namespace
}  // namespace gradrail::transport::simulated_nic

GRADRAIL_PLUGIN_EXPORT const gradrail::transport::BuiltinPlugin* gradrail_builtin_plugin() {
  return &gradrail::transport::simulated_nic::kPlugin;
}
