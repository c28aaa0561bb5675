#include "tools/doctor/apart.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail::tools::doctor {
namespace {

using testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(20);

std::string words(const absl::StatusOr<std::string>& answer) { return std::string(message_of(answer.status())); }

TEST(Apart, BringsBackWhatWasSaidAndWhatWentWrong) {
  const auto good = run_apart([] { return absl::StatusOr<std::string>("two\nlines"); }, kPatience);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(*good, "two\nlines");
  const auto bad = run_apart([]() -> absl::StatusOr<std::string> { return absl::NotFoundError("none"); }, kPatience);
  EXPECT_EQ(bad.status(), absl::NotFoundError("none"));
}

TEST(Apart, ACrashIsTheOtherProcesss) {
  const auto answer = run_apart(
      []() -> absl::StatusOr<std::string> {
        signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make a code of it
        raise(SIGSEGV);
        return std::string();
      },
      kPatience);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(words(answer), HasSubstr("signal 11"));
}

TEST(Apart, WhatEndsTheProcessWithoutAnAnswerIsSaid) {
  const auto answer = run_apart([]() -> absl::StatusOr<std::string> { _exit(7); }, kPatience);
  EXPECT_THAT(words(answer), HasSubstr("code 7"));
}

TEST(Apart, WhatHangsIsKilledAtTheDeadline) {
  const TimePoint start = Clock::now();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto answer = run_apart(
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

TEST(Apart, WhatLibrariesPrintGoesNowhere) {
  testing::internal::CaptureStdout();
  const auto answer = run_apart(
      [] {
        std::puts("noise");
        std::fflush(stdout);
        return absl::StatusOr<std::string>("said");
      },
      kPatience);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(answer.value_or(""), "said");
}

}  // namespace
}  // namespace gradrail::tools::doctor
