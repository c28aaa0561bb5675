#include "tools/doctor/isolated.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail::tools::doctor {
namespace {

using testing::HasSubstr;

constexpr Duration kTimeout = std::chrono::seconds(20);

std::string words(const absl::StatusOr<std::string>& answer) { return std::string(message_of(answer.status())); }

TEST(RunIsolated, ReturnsTheResultOrTheError) {
  const auto good = run_isolated([] { return absl::StatusOr<std::string>("two\nlines"); }, kTimeout);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(*good, "two\nlines");
  const auto bad = run_isolated([]() -> absl::StatusOr<std::string> { return absl::NotFoundError("none"); }, kTimeout);
  EXPECT_EQ(bad.status(), absl::NotFoundError("none"));
}

TEST(RunIsolated, ACrashEndsTheChildOnly) {
  const auto answer = run_isolated(
      []() -> absl::StatusOr<std::string> {
        signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make a code of it
        raise(SIGSEGV);
        return std::string();
      },
      kTimeout);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(words(answer), HasSubstr("signal 11"));
}

TEST(RunIsolated, AnExitWithoutAResultIsReported) {
  const auto answer = run_isolated([]() -> absl::StatusOr<std::string> { _exit(7); }, kTimeout);
  EXPECT_THAT(words(answer), HasSubstr("code 7"));
}

TEST(RunIsolated, AHangIsKilledAtTheDeadline) {
  const TimePoint start = Clock::now();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto answer = run_isolated(
      [&]() -> absl::StatusOr<std::string> {
        const pid_t self = getpid();
        EXPECT_EQ(write(ends[1], &self, sizeof(self)), ssize_t{sizeof(self)});
        while (true) pause();
      },
      std::chrono::seconds(1));
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), ssize_t{sizeof(child)});
  EXPECT_NE(kill(child, 0), 0) << "it goes on";
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(seconds_since(start), 10);
}

TEST(RunIsolated, OutputOfLibrariesIsDiscarded) {
  testing::internal::CaptureStdout();
  const auto answer = run_isolated(
      [] {
        std::puts("noise");
        std::fflush(stdout);
        return absl::StatusOr<std::string>("said");
      },
      kTimeout);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(answer.value_or(""), "said");
}

}  // namespace
}  // namespace gradrail::tools::doctor
