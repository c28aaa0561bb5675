#include "transport/common/native_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

namespace gradrail::transport::common {
namespace {

using ::testing::HasSubstr;

TEST(CommonNativeError, states_transport_action_cause_and_hint) {
  const absl::Status status =
      native_error("tcp", "connect to a:1", "refused", {absl::StatusCode::kUnavailable, "is it running?"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "tcp: connect to a:1: refused (is it running?)");
  EXPECT_EQ(native_error("tcp", "read", "reset", {absl::StatusCode::kInternal, ""}).message(), "tcp: read: reset");
}

TEST(CommonNativeError, a_failed_registration_names_the_limit_and_its_remedy) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  const absl::Status status = locked_memory_error("ucx", 4096, "no memory");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("ucx: register 4096 bytes: no memory"));
  EXPECT_THAT(text, HasSubstr(limit.rlim_cur == RLIM_INFINITY ? "is unlimited"
                                                              : std::to_string(limit.rlim_cur / 1024) + " KiB"));
  EXPECT_THAT(text, HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace gradrail::transport::common
