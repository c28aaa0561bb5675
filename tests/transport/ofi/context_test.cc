#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "base/gpu_memory.h"
#include "transport/ofi/context.h"
#include "transport/ofi/handshake.h"
#include "transport/ofi/native_error.h"
#include "transport/ofi/provider.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::ofi {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);

OpenOptions over_tcp() { return {.ofi_provider = "tcp"}; }

std::unique_ptr<Context> open_or_abort(absl::StatusOr<std::unique_ptr<Context>> opened) {
  if (!opened.ok()) throw std::runtime_error(opened.status().ToString());
  return *std::move(opened);
}

/// Drives both contexts from this thread until the predicate, fed with each completion of either, is true.
bool drive(Context& one, Context& other, const std::function<bool(const Completion&)>& until) {
  const TimePoint deadline = Clock::now() + kTimeout;
  while (Clock::now() < deadline) {
    for (Context* context : {&one, &other}) {
      std::array<Completion, 1> out;
      if (context->poll(absl::MakeSpan(out)) > 0 && until(out[0])) return true;
    }
  }
  return false;
}

std::string text_of(const absl::Status& status) { return status.ToString(); }

/// Sends text over plain tcp to an ofi listener, and returns the reason in the disconnect message.
std::string answer_to(const std::string& words) {
  const auto listener = open_or_abort(open(over_tcp()));
  const auto pending = open_or_abort(tcp::open({}));
  const auto address = listener->listen("127.0.0.1:0");
  EXPECT_TRUE(address.ok()) << address.status();
  const auto connection = pending->connect(*address, Clock::now() + kTimeout);
  EXPECT_TRUE(connection.ok()) << connection.status();
  EXPECT_TRUE((*connection)->send({reinterpret_cast<const std::byte*>(words.data()), words.size()}).ok());
  std::string reason;
  const bool answered = drive(*listener, *pending, [&](const Completion& completion) {
    EXPECT_NE(completion.kind, Completion::Kind::connected) << "the listener's owner must not hear of it";
    if (completion.kind != Completion::Kind::message) return false;
    const auto message = decode(completion.message);
    if (message.ok() && std::holds_alternative<Disconnect>(*message)) reason = std::get<Disconnect>(*message).reason;
    return true;
  });
  EXPECT_TRUE(answered);
  return reason;
}

TEST(OfiContext, an_unknown_peer_gets_the_reason_and_its_owner_nothing) {
  EXPECT_NE(answer_to("GET / HTTP/1.1").find("not a message of the ofi transport"), std::string::npos);
  EXPECT_NE(answer_to(encode(Grant{1, 2, 3})).find("no hello"), std::string::npos);
  EXPECT_NE(answer_to(encode(Request{1, {}})).find("no hello"), std::string::npos);
}

TEST(OfiContext, a_peer_of_another_version_gets_the_reason) {
  EndpointHello hello{.version = 99, .provider = "tcp;ofi_rxm", .receives = 1, .address = "x"};
  EXPECT_NE(answer_to(encode(hello)).find("version 99"), std::string::npos);
}

TEST(OfiContext, a_peer_with_another_provider_gets_the_reason) {
  EndpointHello hello{.provider = "efa", .receives = 1, .address = "x"};
  EXPECT_NE(answer_to(encode(hello)).find("'efa'"), std::string::npos);
}

TEST(OfiContext, a_listener_that_speaks_tcp_is_an_error_with_a_deadline) {
  const auto ours = open_or_abort(open(over_tcp()));
  const auto theirs = open_or_abort(tcp::open({}));
  const auto address = theirs->listen("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  const auto connection = ours->connect(*address, Clock::now() + std::chrono::seconds(2));
  absl::Status cause = connection.status();
  if (connection.ok()) {
    EXPECT_TRUE(drive(*ours, *theirs, [&](const Completion& completion) {
      if (completion.kind != Completion::Kind::peer_lost || completion.connection != *connection) return false;
      cause = completion.cause;
      return true;
    }));
  }
  EXPECT_NE(text_of(cause).find("no handshake in time"), std::string::npos) << cause;
}

TEST(OfiContext, one_thread_can_drive_both_ends) {
  const auto one = open_or_abort(open(over_tcp()));
  const auto other = open_or_abort(open(over_tcp()));
  const auto address = one->listen("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  const auto connection = other->connect(*address, Clock::now() + kTimeout);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const std::string words = "hello";
  ASSERT_TRUE((*connection)->send({reinterpret_cast<const std::byte*>(words.data()), words.size()}).ok());
  EXPECT_TRUE(drive(*one, *other, [](const Completion& each) { return each.kind == Completion::Kind::message; }));
  EXPECT_EQ((*connection)->describe().rfind("ofi tcp;ofi_rxm ", 0), 0u) << (*connection)->describe();
  EXPECT_FALSE((*connection)->uses_rdma());
}

TEST(OfiProvider, one_that_does_not_exist_is_an_error_that_says_what_there_is) {
  const auto opened = open({.ofi_provider = "pigeons"});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(text_of(opened.status()).find("'pigeons'"), std::string::npos) << opened.status();
  EXPECT_NE(text_of(opened.status()).find("tcp;ofi_rxm"), std::string::npos) << opened.status();
}

/// udp alone has datagrams and nothing else. libfabric reads what it may use once in a process, hence another one.
[[noreturn]] void open_udp_alone() {
  setenv("FI_PROVIDER", "^ofi_rxd", 1);
  std::cerr << open({.ofi_provider = "udp"}).status() << std::endl;
  std::_Exit(0);
}

TEST(OfiProviderDeathTest, one_that_cannot_write_into_memory_is_an_error_that_says_so) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_udp_alone(), ::testing::ExitedWithCode(0),
              "UNAVAILABLE: .*'udp' cannot write into a peer's memory \\(FI_RMA\\).*choose one of .*tcp;ofi_rxm");
}

TEST(OfiProvider, sockets_are_not_rdma) {
  const auto opened = open({.rdma_only = true, .ofi_provider = "tcp"});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(text_of(opened.status()).find("no RDMA provider"), std::string::npos) << opened.status();
}

TEST(OfiProvider, an_address_of_no_interface_is_an_error) {
  const auto opened = open({.bind_host = "198.51.100.7", .ofi_provider = "tcp"});
  EXPECT_NE(text_of(opened.status()).find("198.51.100.7"), std::string::npos) << opened.status();
  EXPECT_NE(text_of(opened.status()).find("there is tcp;ofi_rxm on "), std::string::npos) << opened.status();
}

TEST(OfiProvider, rdma_comes_first) {
  EXPECT_LT(provider_rank("verbs"), provider_rank("efa"));
  for (const char* rdma : {"verbs", "verbs;ofi_rxm", "efa", "cxi", "psm3"}) {
    EXPECT_TRUE(is_rdma_provider(rdma)) << rdma;
    EXPECT_LT(provider_rank(rdma), provider_rank("tcp;ofi_rxm")) << rdma;
  }
  EXPECT_LT(provider_rank("tcp;ofi_rxm"), provider_rank("shm"));
  for (const char* other : {"udp;ofi_rxd", "verbs;ofi_rxd", "sockets", "net"}) {
    EXPECT_FALSE(is_rdma_provider(other)) << other;
    EXPECT_EQ(provider_rank(other), kOnlyByName) << other;
  }
}

TEST(OfiProvider, a_short_name_means_the_layers_above_too) {
  EXPECT_TRUE(provider_matches("tcp;ofi_rxm", "tcp"));
  EXPECT_TRUE(provider_matches("verbs;ofi_rxm", "verbs;ofi_rxm"));
  EXPECT_FALSE(provider_matches("verbs", "verbs;ofi_rxm"));
  EXPECT_FALSE(provider_matches("verbs;ofi_rxd", "verbs;ofi_rxm"));
  EXPECT_FALSE(provider_matches("tcpip", "tcp"));
}

TEST(OfiGpu, a_libfabric_without_cuda_is_the_reason_that_is_given) {
  const auto context = open_or_abort(open(over_tcp()));
  const GpuTransferSupport ways = context->capabilities().gpu;
  for (const NicGpuTransfer way : {NicGpuTransfer::dma_buf, NicGpuTransfer::peer_memory}) {
    if (ways.takes(way)) continue;
    EXPECT_EQ(ways.why_not(way).rfind("moves host memory only: ", 0), 0u) << ways.why_not(way);
    EXPECT_NE(ways.why_not(way).find("libfabric"), std::string::npos) << ways.why_not(way);
  }
}

class OnGpu final : public GpuMemorySource {
 public:
  explicit OnGpu(NicGpuTransfer way) : GpuMemorySource(3, way) {}
  absl::StatusOr<DmaBuf> export_dma_buf(const void*, size_t) const override { return absl::InternalError("unused"); }
};

TEST(OfiError, gpu_memory_that_a_device_does_not_reach_names_gpu_device_and_way) {
  const OnGpu by_module(NicGpuTransfer::peer_memory), by_dma_buf(NicGpuTransfer::dma_buf);
  const auto text = [](const GpuMemorySource& source, int error) {
    return text_of(gpu_registration_error({.data = nullptr, .bytes = 4096, .kind = MemoryKind::cuda, .gpu = &source},
                                          "mlx5_1", error));
  };
  for (const char* part : {"FAILED_PRECONDITION", "GPU 3", "mlx5_1", "peermem", "nvidia_peermem"}) {
    EXPECT_NE(text(by_module, EFAULT).find(part), std::string::npos) << text(by_module, EFAULT);
  }
  EXPECT_NE(text(by_dma_buf, EOPNOTSUPP).find("import dma-bufs"), std::string::npos);
  EXPECT_NE(text(by_dma_buf, ENOMEM).find("BAR1"), std::string::npos);
}

TEST(OfiError, a_registration_that_fails_names_the_limit_and_the_remedies) {
  const absl::Status status = registration_error(123'456'789, ENOMEM);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"123456789 bytes", "ulimit -l", "LimitMEMLOCK", "limits.conf"}) {
    EXPECT_NE(text_of(status).find(part), std::string::npos) << part << ": " << status;
  }
}

}  // namespace
}  // namespace gradrail::transport::ofi
