#include "base/subprocess.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail {
namespace {

using testing::HasSubstr;

using Text = absl::StatusOr<std::string>;

constexpr Duration kTimeout = std::chrono::seconds(20);

Text run(const std::function<Text()>& work) { return run_in_subprocess(work, {.timeout = kTimeout}); }

std::string words(const Text& answer) { return std::string(message_of(answer.status())); }

TEST(Subprocess, ReturnsTheResultOrTheError) {
  const Text good = run([] { return Text("two\nlines"); });
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(*good, "two\nlines");
  EXPECT_EQ(run([] { return Text(""); }).value_or("none"), "");
  EXPECT_EQ(run([]() -> Text { return absl::NotFoundError("none"); }).status(), absl::NotFoundError("none"));
}

TEST(Subprocess, ACrashEndsTheChildOnly) {
  const Text answer = run([]() -> Text {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make an exit code of it
    raise(SIGSEGV);
    return std::string();
  });
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(words(answer), HasSubstr("signal 11"));
}

TEST(Subprocess, AnExitWithoutAResultIsReported) {
  EXPECT_THAT(words(run([]() -> Text { _exit(7); })), HasSubstr("exit code 7"));
  EXPECT_EQ(run([]() -> Text { _exit(0); }).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Subprocess, AHangIsKilledAtTheDeadline) {
  const absl::StatusOr<Pipe> pipe = open_pipe();
  ASSERT_TRUE(pipe.ok());
  const Text answer = run_in_subprocess(
      [&]() -> Text {
        const pid_t self = getpid();
        EXPECT_EQ(write(pipe->writer.get(), &self, sizeof(self)), ssize_t{sizeof(self)});
        while (true) pause();
      },
      {.timeout = std::chrono::seconds(1)});
  pid_t child = 0;
  ASSERT_EQ(read(pipe->reader.get(), &child, sizeof(child)), ssize_t{sizeof(child)});
  EXPECT_NE(kill(child, 0), 0) << "the process continues";
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Subprocess, ALongResultIsRefused) {
  constexpr size_t kMax = 100'000;  // more than a pipe holds
  const auto write_bytes = [](size_t bytes) {
    return run_in_subprocess([&] { return Text(std::string(bytes, 'x')); },
                             {.timeout = kTimeout, .max_output_bytes = kMax});
  };
  EXPECT_EQ(write_bytes(kMax).value_or("").size(), kMax);
  EXPECT_EQ(write_bytes(kMax + 10).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Subprocess, OutputOfLibrariesIsDiscarded) {
  testing::internal::CaptureStdout();
  const Text answer = run([] {
    std::puts("noise");
    std::fflush(stdout);
    return Text("said");
  });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(answer.value_or(""), "said");
}

TEST(Subprocess, ReadUntilClosedReportsEachLimit) {
  absl::StatusOr<Pipe> pipe = open_pipe();
  ASSERT_TRUE(pipe.ok());
  ASSERT_TRUE(write_all(pipe->writer.get(), "12345"));
  const auto read_for = [&](Duration timeout, size_t max_bytes) {
    const TimePoint start = Clock::now();
    return read_until_closed(pipe->reader.get(), start, start + timeout, max_bytes);
  };
  constexpr Duration kSoon = std::chrono::milliseconds(50);
  EXPECT_EQ(read_for(kSoon, 100).status(), absl::DeadlineExceededError("no answer within 0.05 s"));
  ASSERT_TRUE(write_all(pipe->writer.get(), "12345"));
  EXPECT_EQ(read_for(kSoon, 4).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(write_all(pipe->writer.get(), "1234"));
  pipe->writer.reset();
  EXPECT_EQ(read_for(kTimeout, 4).value_or(""), "1234");
}

TEST(Subprocess, TheMessageOfATimeoutHasTheWholeTimeout) {
  const absl::StatusOr<Pipe> pipe = open_pipe();
  ASSERT_TRUE(pipe.ok());
  // The other end began two seconds ago, and its second is over before the read begins.
  const TimePoint start = Clock::now() - std::chrono::seconds(2);
  EXPECT_EQ(read_until_closed(pipe->reader.get(), start, start + std::chrono::seconds(1), 100).status(),
            absl::DeadlineExceededError("no answer within 1 s"));
}

}  // namespace
}  // namespace gradrail
