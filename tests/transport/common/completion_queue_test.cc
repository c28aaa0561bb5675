#include "transport/common/completion_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/common/message_buffers.h"
#include "transport/connection.h"

namespace gradrail::transport::common {
namespace {

using Numbers = std::vector<uint64_t>;

class CommonCompletionQueue : public ::testing::Test {
 protected:
  void push(uint64_t tag, const Connection* connection = nullptr) {
    queue_.push({.connection = const_cast<Connection*>(connection), .tag = tag}, std::make_unique<uint64_t>(tag));
  }
  Numbers take(size_t most) {
    std::vector<Completion> out(most);
    Numbers tags;
    const size_t count = queue_.take(absl::MakeSpan(out));
    for (size_t i = 0; i < count; ++i) tags.push_back(out[i].tag);
    return tags;
  }
  Numbers release() {
    Numbers released;
    queue_.release_delivered([&](std::unique_ptr<uint64_t> each) { released.push_back(*each); });
    return released;
  }
  CompletionQueue<std::unique_ptr<uint64_t>> queue_;
};

TEST_F(CommonCompletionQueue, gives_the_oldest_first_and_as_many_as_fit) {
  for (uint64_t tag : {1, 2, 3}) push(tag);
  EXPECT_EQ(take(2), (Numbers{1, 2}));
  EXPECT_EQ(queue_.size(), 1u);
  push(4);
  EXPECT_EQ(take(9), (Numbers{3, 4}));
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(take(9), Numbers{});
}

TEST_F(CommonCompletionQueue, keeps_the_attachments_until_the_next_poll) {
  for (uint64_t tag : {1, 2, 3}) push(tag);
  take(2);
  EXPECT_EQ(release(), (Numbers{1, 2}));
  EXPECT_EQ(release(), Numbers{}) << "released twice";
  queue_.push({.tag = 5});  // has none
  take(9);
  EXPECT_EQ(release(), Numbers{3});
}

TEST_F(CommonCompletionQueue, forgets_only_the_closed_connection) {
  int places[2] = {};
  const auto* const closed = reinterpret_cast<const Connection*>(&places[0]);
  const auto* const kept = reinterpret_cast<const Connection*>(&places[1]);
  push(0, closed);
  for (uint64_t tag : {1, 2, 3, 4}) push(tag, tag % 2 == 0 ? closed : kept);
  take(1);
  queue_.forget(closed);
  EXPECT_EQ(take(9), (Numbers{1, 3}));
}

TEST_F(CommonCompletionQueue, a_caller_that_never_empties_it_loses_nothing) {
  push(0);
  for (uint64_t tag = 1; tag < 2000; ++tag) {
    push(tag);
    ASSERT_EQ(take(1), Numbers{tag - 1});
  }
  EXPECT_EQ(queue_.size(), 1u);
}

TEST(CommonMessageBuffers, reuses_up_to_the_limit) {
  MessageBuffers buffers(16, 1);
  MessageBuffer first = buffers.take();
  MessageBuffer second = buffers.take();
  const std::byte* const place = first.get();
  buffers.give_back(std::move(first));
  buffers.give_back(std::move(second));
  EXPECT_EQ(buffers.take().get(), place);
}

}  // namespace
}  // namespace gradrail::transport::common
