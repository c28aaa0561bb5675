// Which way of telling a peer that a put is there costs least with UCX, which has no put with immediate?
//
//   a  put, fence, 16-byte put into the receiver's doorbell ring, which it polls in memory
//   b  put, flush of the endpoint, active message
//   c  active message alone: eager or rendezvous, received straight into the target
//   d  put, fence, active message (UCX's manual promises no order between a fenced put and an active message)
//
// Two processes play ping-pong with each way and size; each checks the last word of what it got at each turn. Half a
// round trip is what is printed. UCX_TLS chooses the transport, as everywhere.
//   ucx_notice [seconds for each figure]
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "bench/driver/harness.h"

namespace gradrail::bench {
namespace {

constexpr size_t kSizes[] = {8, 4096, 318040, 4 << 20};
constexpr size_t kMaxBytes = 4 << 20;
constexpr size_t kDoorbells = 64;
constexpr unsigned kNoticeId = 1;

void check_ok(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "ucx_notice: %s: %s\n", what, ucs_status_string(status));
  std::exit(1);
}

/// The socket between the two processes: set-up and turns.
void send_all(int fd, const std::string& text) {
  const uint64_t bytes = text.size();
  GRADRAIL_CHECK(write(fd, &bytes, sizeof(bytes)) == sizeof(bytes));
  GRADRAIL_CHECK(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

std::string receive_all(int fd) {
  uint64_t bytes = 0;
  GRADRAIL_CHECK(recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
  std::string text(bytes, '\0');
  GRADRAIL_CHECK(recv(fd, text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  return text;
}

/// Written by the peer, or by the thread that receives for it.
struct alignas(64) Arena {
  std::byte source[kMaxBytes];
  std::byte target[kMaxBytes];
  std::atomic<uint64_t> doorbells[kDoorbells];
  uint64_t ring_value;
};

/// One end: a UCX worker, the arena registered with it, and the endpoint to the other.
class End {
 public:
  explicit End(int fd) : fd_(fd) {
    open();
    send_all(fd_, address());
    connect(receive_all(fd_));
    exchange_keys();
  }
  ~End() {
    send_all(fd_, "bye");
    receive_all(fd_);
    _exit(0);  // the two must not wait for each other's last words
  }

  void put_notice(char way, size_t bytes, uint64_t turn) {
    std::memcpy(arena_->source + bytes - sizeof(turn), &turn, sizeof(turn));
    if (way == 'c') return wait_for(post_message(turn, arena_->source, bytes));
    const ucp_request_param_t none = with_memory();
    release(ucp_put_nbx(endpoint_, arena_->source, bytes, remote_ + offsetof(Arena, target), key_, &none));
    if (way == 'b') {
      const ucp_request_param_t plain{};
      wait_for(ucp_ep_flush_nbx(endpoint_, &plain));
    } else {
      check_ok(ucp_worker_fence(worker_), "fence");
    }
    way == 'a' ? ring(turn) : wait_for(post_message(turn, nullptr, 0));
  }

  void await(char way, size_t bytes, uint64_t turn) {
    if (way == 'a') {
      while (arena_->doorbells[turn % kDoorbells].load(std::memory_order_acquire) != turn) turn_over();
    } else {
      while (noticed_ != turn) turn_over();
    }
    uint64_t got = 0;
    std::memcpy(&got, arena_->target + bytes - sizeof(got), sizeof(got));
    wrong_ += got == turn ? 0 : 1;
  }

  uint64_t wrong() const { return wrong_; }
  std::string say(const std::string& text) {
    send_all(fd_, text);
    return receive_all(fd_);
  }

 private:
  /// Two spinning processes and a busy machine: a process without work lets the other run.
  void turn_over() {
    if (ucp_worker_progress(worker_) == 0) sched_yield();
  }

  void open() {
    ucp_config_t* config = nullptr;
    check_ok(ucp_config_read(nullptr, nullptr, &config), "read configuration");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
    check_ok(ucp_init(&params, config, &context_), "init");
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check_ok(ucp_worker_create(context_, &worker, &worker_), "worker");
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kNoticeId;
    handler.cb = on_message;
    handler.arg = this;
    check_ok(ucp_worker_set_am_recv_handler(worker_, &handler), "handler");
    arena_ = new Arena{};
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    map.address = arena_;
    map.length = sizeof(Arena);
    check_ok(ucp_mem_map(context_, &map, &memory_), "map");
  }

  std::string address() {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check_ok(ucp_worker_get_address(worker_, &address, &bytes), "address");
    return {reinterpret_cast<const char*>(address), bytes};
  }

  void connect(const std::string& peer) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    check_ok(ucp_ep_create(worker_, &params, &endpoint_), "endpoint");
  }

  void exchange_keys() {
    void* packed = nullptr;
    size_t bytes = 0;
    check_ok(ucp_rkey_pack(context_, memory_, &packed, &bytes), "pack key");
    const auto own = reinterpret_cast<uint64_t>(arena_);
    send_all(fd_, std::string(reinterpret_cast<const char*>(&own), sizeof(own)));
    send_all(fd_, std::string(static_cast<const char*>(packed), bytes));
    std::memcpy(&remote_, receive_all(fd_).data(), sizeof(remote_));
    check_ok(ucp_ep_rkey_unpack(endpoint_, receive_all(fd_).data(), &key_), "unpack key");
  }

  ucp_request_param_t with_memory() const {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memh = memory_;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    return param;
  }

  ucs_status_ptr_t post_message(uint64_t turn, const std::byte* data, size_t bytes) {
    header_ = turn;
    const ucp_request_param_t param = with_memory();
    return ucp_am_send_nbx(endpoint_, kNoticeId, &header_, sizeof(header_), data, bytes, &param);
  }

  void ring(uint64_t turn) {
    arena_->ring_value = turn;
    const ucp_request_param_t param = with_memory();
    const size_t bell = offsetof(Arena, doorbells) + turn % kDoorbells * sizeof(uint64_t);
    wait_for(ucp_put_nbx(endpoint_, &arena_->ring_value, sizeof(uint64_t), remote_ + bell, key_, &param));
  }

  void release(ucs_status_ptr_t request) {
    if (UCS_PTR_IS_ERR(request)) check_ok(UCS_PTR_STATUS(request), "post");
    if (request != nullptr) ucp_request_free(request);
  }

  void wait_for(ucs_status_ptr_t request) {
    if (UCS_PTR_IS_PTR(request)) {
      while (ucp_request_check_status(request) == UCS_INPROGRESS) turn_over();
      check_ok(ucp_request_check_status(request), "operation");
    }
    release(request);
  }

  static ucs_status_t on_message(void* arg, const void* header, size_t, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
    auto* const self = static_cast<End*>(arg);
    std::memcpy(&self->arriving_, header, sizeof(self->arriving_));
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      if (bytes > 0) std::memcpy(self->arena_->target, data, bytes);
      self->noticed_ = self->arriving_;
      return UCS_OK;
    }
    ucp_request_param_t receive = self->with_memory();
    receive.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    receive.user_data = self;
    receive.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
      check_ok(status, "rendezvous");
      auto* const end = static_cast<End*>(user_data);
      end->noticed_ = end->arriving_;
      ucp_request_free(request);
    };
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(self->worker_, data, self->arena_->target, bytes, &receive);
    if (UCS_PTR_IS_ERR(request)) check_ok(UCS_PTR_STATUS(request), "receive");
    if (request == nullptr) self->noticed_ = self->arriving_;
    return UCS_INPROGRESS;
  }

  int fd_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t remote_ = 0;
  Arena* arena_ = nullptr;
  uint64_t header_ = 0;
  uint64_t arriving_ = 0;
  uint64_t noticed_ = 0;
  uint64_t wrong_ = 0;
};

/// The turns of one figure.
void play(End& end, bool first, char way, size_t bytes, double seconds, uint64_t& turn) {
  std::vector<double> half_trips_us;
  const uint64_t warm_up = 20;
  uint64_t rounds = 0;
  uint64_t planned = warm_up;
  while (rounds < planned) {
    const TimePoint start = Clock::now();
    ++turn;
    if (first) end.put_notice(way, bytes, turn);
    end.await(way, bytes, first ? turn + 1 : turn);
    if (!first) end.put_notice(way, bytes, turn + 1);
    ++turn;
    half_trips_us.push_back(seconds_since(start) * 5e5);
    if (++rounds != warm_up || planned != warm_up) continue;
    // Both play the same number of rounds: the first end's pace decides.
    const double pace = std::accumulate(half_trips_us.begin() + 10, half_trips_us.end(), 0.0) / 10 * 2e-6;
    const std::string own =
        std::to_string(std::clamp(static_cast<uint64_t>(seconds / pace), uint64_t{20}, uint64_t{200'000}));
    const std::string theirs = end.say(own);
    planned += std::stoull(first ? own : theirs);
    half_trips_us.clear();
  }
  if (!first) return;
  std::sort(half_trips_us.begin(), half_trips_us.end());
  const auto at = [&](double share) {
    return half_trips_us[static_cast<size_t>(share * static_cast<double>(half_trips_us.size() - 1))];
  };
  std::printf("%c %8zu %9.2f %9.2f %9.2f %8zu %6lu\n", way, bytes, half_trips_us.front(), at(0.5), at(0.99),
              half_trips_us.size(), end.wrong());
  std::fflush(stdout);
}

void play_all(int fd, bool first, double seconds) {
  End end(fd);
  uint64_t turn = 0;
  for (const size_t bytes : kSizes) {
    for (const char way : {'a', 'b', 'c', 'd'}) play(end, first, way, bytes, seconds, turn);
  }
}

int main_of(double seconds) {
  // As the transport does (transport/ucx/settings.cc).
  setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
  setenv("UCX_TCP_TX_SEG_SIZE", "64k", 0);
  setenv("UCX_TCP_RX_SEG_SIZE", "64k", 0);
  const char* transports = getenv("UCX_TLS");
  std::printf("# %s\n# UCX %s, UCX_TLS=%s; half a round trip in us\n", machine().c_str(), ucp_get_version_string(),
              transports == nullptr ? "(all)" : transports);
  std::printf("%s %8s %9s %9s %9s %8s %6s\n", "#", "bytes", "min", "p50", "p99", "trips", "wrong");
  std::fflush(stdout);
  int fds[2];
  GRADRAIL_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
  const pid_t child = fork();  // before anything of UCX's
  play_all(fds[child == 0 ? 1 : 0], child != 0, seconds);
  return 0;
}

}  // namespace
}  // namespace gradrail::bench

int main(int count, char** values) { return gradrail::bench::main_of(count > 1 ? std::atof(values[1]) : 1.0); }
