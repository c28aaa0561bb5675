#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/shm/context.h"

namespace gradrail::transport::shm::testing {

/// Far beyond what a loaded machine needs, so that only a lost event reaches it.
inline constexpr auto kTimeout = std::chrono::seconds(20);

inline std::unique_ptr<Context> open_context() {
  absl::StatusOr<std::unique_ptr<Context>> context = open({});
  EXPECT_TRUE(context.ok()) << context.status();
  return std::move(*context);
}

inline SharedMemory shared_memory(size_t bytes) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::create("shm-test", bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return std::move(*memory);
}

/// The next completion of `context`; fails and returns an empty peer_lost at the deadline. Polls `other` meanwhile.
inline Completion await(Context& context, Context* other = nullptr) {
  const TimePoint deadline = Clock::now() + kTimeout;
  Completion completion;
  Completion ignored;
  while (Clock::now() < deadline) {
    if (context.poll({&completion, 1}) == 1) return completion;
    if (other != nullptr) other->poll({&ignored, 1});
  }
  ADD_FAILURE() << "nothing completed";
  return {.kind = Completion::Kind::peer_lost, .cause = absl::DeadlineExceededError("nothing completed")};
}

/// Polls both until `done`, which must not depend on completions.
template <typename Done>
::testing::AssertionResult poll_until(Context& context, Context& other, Done done) {
  const TimePoint deadline = Clock::now() + kTimeout;
  Completion completion;
  while (!done()) {
    if (Clock::now() > deadline) return ::testing::AssertionFailure() << "deadline";
    for (Context* each : {&context, &other}) {
      if (each->poll({&completion, 1}) == 1) {
        return ::testing::AssertionFailure()
               << "completion of kind " << static_cast<int>(completion.kind) << " " << completion.cause;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/// A listening context and a connecting one, with both connections.
struct Pair {
  std::unique_ptr<Context> server = open_context();
  std::unique_ptr<Context> client = open_context();
  Connection* to_client = nullptr;
  Connection* to_server = nullptr;

  Pair() {
    absl::StatusOr<std::string> address = server->listen("");
    EXPECT_TRUE(address.ok()) << address.status();
    absl::StatusOr<Connection*> connection = client->connect(*address, Clock::now() + kTimeout);
    EXPECT_TRUE(connection.ok()) << connection.status();
    to_server = *connection;
    const Completion connected = await(*server, client.get());
    EXPECT_EQ(connected.kind, Completion::Kind::connected);
    to_client = connected.connection;
  }
};

}  // namespace gradrail::transport::shm::testing
