#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/random.h"
#include "conformance/pattern.h"
#include "fmt/format.h"
#include "transport/loopback/context.h"

namespace gradrail::conformance {
namespace {

using transport::Access;
using transport::Completion;
using transport::Connection;
using transport::Context;
using transport::MemoryRegion;
using transport::RemoteRegion;
using transport::loopback::Faults;
using Kind = Completion::Kind;

constexpr size_t kPuts = 200;
constexpr size_t kBytes = 64;

/// Two contexts in one thread, polled in turn: nothing but the seed decides what happens.
struct Simulation {
  explicit Simulation(const Faults& faults)
      : client(open(faults)), server(open(faults)), memory(kPuts * kBytes), source(kPuts * kBytes) {
    const std::string address = server->listen("").value();
    to_server = client->connect(address, Clock::now()).value();
    target = server->register_memory({memory.data(), memory.size()}, Access::remote_read_write).value();
    local = client->register_memory({source.data(), source.size()}, Access::local).value();
    region = to_server->import(target->key()).value();
    for (size_t i = 0; i < kPuts; ++i) fill_pattern({source.data() + i * kBytes, kBytes}, i);
  }

  static std::unique_ptr<Context> open(const Faults& faults) { return transport::loopback::open_with(faults).value(); }

  void post_everything() {
    for (size_t i = 0; i < kPuts; ++i) {
      put(i);
      if (i % 4 == 0) send(i);
    }
  }
  void put(size_t i) {
    note(to_server->put({local.get(), i * kBytes, kBytes}, {region, i * kBytes}, {.immediate = i, .tag = i + 1}));
  }
  void send(size_t i) {
    const std::string text = std::to_string(i);
    note(to_server->send({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  }
  void note(const absl::Status& status) {
    if (!status.ok()) trace.push_back(fmt::format("refused {}", static_cast<int>(status.code())));
  }

  void poll(Context& context, char name) {
    std::array<Completion, 3> out;
    const size_t count = context.poll(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) {
      const std::string text(reinterpret_cast<const char*>(out[i].message.data()), out[i].message.size());
      trace.push_back(
          fmt::format("{} {} {} {} {}", name, static_cast<int>(out[i].kind), out[i].tag, out[i].immediate, text));
      on_completion(name, out[i]);
    }
  }
  void on_completion(char name, const Completion& completion) {
    lost_count += completion.kind == Kind::peer_lost ? 1 : 0;
    done_count += completion.kind == Kind::put_done ? 1 : 0;
    if (name != 's' || completion.kind != Kind::put_arrived) return;
    EXPECT_EQ(completion.immediate, notices) << "notices out of order";
    const size_t i = completion.immediate;
    EXPECT_TRUE(has_pattern({memory.data() + i * kBytes, kBytes}, i)) << "announced and not there: " << i;
    ++notices;
  }
  void run(int polls) {
    for (int i = 0; i < polls; ++i) {
      poll(*server, 's');
      poll(*client, 'c');
    }
  }

  // Order of destruction: regions, then contexts.
  std::unique_ptr<Context> client, server;
  std::vector<std::byte> memory, source;
  std::unique_ptr<MemoryRegion> target, local;
  Connection* to_server = nullptr;
  RemoteRegion region{};
  std::vector<std::string> trace;
  uint64_t notices = 0;
  int lost_count = 0;
  size_t done_count = 0;
};

std::vector<std::string> trace_of(const Faults& faults) {
  Simulation simulation(faults);
  simulation.post_everything();
  simulation.run(3000);
  return simulation.trace;
}

TEST(LoopbackFaults, same_seed_same_history) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Faults faults{
        .seed = seed, .delay_probability = 0.4, .max_delay_polls = 7, .loss_of_link_probability = 0.005};
    EXPECT_EQ(trace_of(faults), trace_of(faults)) << "seed " << seed;
  }
}

TEST(LoopbackFaults, other_seed_other_history) {
  EXPECT_NE(trace_of({.seed = 1, .delay_probability = 0.4, .max_delay_polls = 7}),
            trace_of({.seed = 2, .delay_probability = 0.4, .max_delay_polls = 7}));
}

// on_completion() checks what connection.h promises at every step.
TEST(LoopbackFaults, delays_reorder_nothing_that_is_ordered_and_lose_nothing) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation({.seed = seed, .delay_probability = 0.5, .max_delay_polls = 10});
    simulation.post_everything();
    simulation.run(3000);
    EXPECT_EQ(simulation.notices, kPuts);
    EXPECT_EQ(simulation.done_count, kPuts);
    EXPECT_EQ(simulation.lost_count, 0);
  }
}

TEST(LoopbackFaults, delays_really_delay) {
  Simulation prompt({});
  prompt.put(0);
  prompt.run(2);
  EXPECT_EQ(prompt.notices, 1u);
  Simulation late({.seed = 3, .delay_probability = 1.0, .max_delay_polls = 1000});
  late.put(0);
  late.run(2);
  EXPECT_EQ(late.notices, 0u);
  EXPECT_FALSE(late.server->arm()) << "a waiter must not sleep while something is only delayed";
  late.run(1100);
  EXPECT_EQ(late.notices, 1u);
}

TEST(LoopbackFaults, messages_overtake_puts_and_puts_overtake_messages) {
  bool message_first = false, put_first = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Simulation simulation({.seed = seed, .delay_probability = 0.5, .max_delay_polls = 10});
    simulation.put(0);
    simulation.send(0);
    simulation.run(50);
    for (const std::string& event : simulation.trace) {
      if (event[0] != 's' || event.starts_with("s 0")) continue;
      (event.starts_with("s 4") ? message_first : put_first) = true;
      break;
    }
  }
  EXPECT_TRUE(message_first);
  EXPECT_TRUE(put_first);
}

TEST(LoopbackFaults, lost_link_is_reported_once_to_both_and_may_leave_a_torn_put_without_notice) {
  bool torn = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation({.seed = seed, .loss_of_link_probability = 0.05});
    for (size_t i = 0; i < kPuts; ++i) simulation.put(i);
    simulation.run(500);
    ASSERT_LT(simulation.notices, kPuts) << "0.95^200: never";
    EXPECT_EQ(simulation.lost_count, 2);
    EXPECT_EQ(simulation.to_server->send({}).code(), absl::StatusCode::kUnavailable);
    const size_t broken = simulation.notices;
    const size_t landed = first_difference({simulation.memory.data() + broken * kBytes, kBytes}, broken);
    EXPECT_LT(landed, kBytes);
    torn |= landed > 0;
    const size_t after = (broken + 1) * kBytes;
    EXPECT_TRUE(all_equal({simulation.memory.data() + after, simulation.memory.size() - after}, std::byte{0}));
  }
  EXPECT_TRUE(torn);
}

TEST(LoopbackFaults, queue_is_bounded_and_opens_again) {
  Simulation simulation({.seed = 1, .delay_probability = 1.0, .max_delay_polls = 3});
  size_t posted = 0;
  while (simulation.to_server->send({}).ok()) ++posted;
  EXPECT_EQ(posted, 1024u);
  EXPECT_EQ(simulation.to_server->send({}).code(), absl::StatusCode::kResourceExhausted);
  simulation.run(10);
  EXPECT_TRUE(simulation.to_server->send({}).ok());
}

}  // namespace
}  // namespace gradrail::conformance
