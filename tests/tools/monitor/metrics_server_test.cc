#include "tools/monitor/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(MetricsServer, TakesAFreePortAndSaysWhichIsTaken) {
  const auto server = MetricsServer::start("127.0.0.1", 0, [] { return Metrics(); });
  if (!server.ok() && std::string(server.status().message()).find("built without") != std::string::npos) {
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("prometheus-cpp-dev"));
    return;
  }
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_THAT((*server)->url(), MatchesRegex("http://127.0.0.1:[0-9]+/metrics"));
  const int port = std::stoi((*server)->url().substr(17));
  const auto second = MetricsServer::start("127.0.0.1", static_cast<uint16_t>(port), [] { return Metrics(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("port is in use"));
}

}  // namespace
}  // namespace gradrail::tools
