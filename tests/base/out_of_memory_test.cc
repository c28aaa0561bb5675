#include "base/out_of_memory.h"

#include <sys/resource.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "gmock/gmock.h"

namespace gradrail {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

TEST(OutOfMemory, AnAllocationBecomesAStatusThatNamesTheWork) {
  const absl::Status failed = without_exceptions("the call Join", []() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_THAT(words(failed), AllOf(HasSubstr("the call Join: out of memory: this process has "), HasSubstr(" MiB")));
  const absl::StatusOr<int> too_long = without_exceptions("x", []() -> absl::StatusOr<int> {
    std::vector<double>().resize(std::vector<double>().max_size() + 1);
    return 1;
  });
  EXPECT_TRUE(absl::IsResourceExhausted(too_long.status())) << too_long.status();
}

TEST(OutOfMemory, OtherResultsStay) {
  EXPECT_EQ(without_exceptions("x", []() -> absl::StatusOr<int> { return 7; }).value_or(0), 7);
  const absl::Status own = absl::NotFoundError("none");
  EXPECT_EQ(without_exceptions("x", [&] { return own; }), own);
  const absl::Status other = without_exceptions("x", []() -> absl::Status { throw std::runtime_error("broken"); });
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(words(other), HasSubstr("x: broken"));
}

// The sanitizers reserve more address space than a limit could leave, and end the process themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void limit_memory() {
  constexpr rlim_t kBytes = rlim_t{256} << 20;
  const rlimit limit{.rlim_cur = kBytes, .rlim_max = kBytes};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(OutOfMemoryDeathTest, AnExceptionThatEndsAThreadIsALineAndAnExitCode) {
  EXPECT_EXIT(
      {
        explain_aborts(4);
        limit_memory();
        std::thread([] { std::vector<char> block(size_t{1} << 40); }).join();
      },
      testing::ExitedWithCode(4), "gradrail: this program: out of memory: .*");
}

TEST(OutOfMemoryDeathTest, AThreadThatIsRefusedIsALineAndAnExitCode) {
  EXPECT_EXIT(
      {
        explain_aborts(4);
        limit_memory();
        std::vector<std::thread> threads;
        while (true) threads.emplace_back([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
      },
      testing::ExitedWithCode(4), "out of memory: this process has used .*ulimit -v.* is 256 MiB: raise it");
}

TEST(OutOfMemoryDeathTest, ALibraryThatAbortsWithoutMemoryIsALineAndAnExitCode) {
  EXPECT_EXIT(
      {
        explain_aborts(4);
        limit_memory();
        void* volatile block = nullptr;  // volatile: the compiler would leave out the calls
        for (size_t bytes = size_t{1} << 27; bytes > (1 << 16); bytes /= 2) {
          do {
            block = std::malloc(bytes);
          } while (block != nullptr);
        }
        std::abort();
      },
      testing::ExitedWithCode(4), "gradrail: out of memory: this process has used .*ulimit -v.* is 256 MiB: raise it");
}

TEST(OutOfMemoryDeathTest, AnotherAbortStaysOne) {
  EXPECT_EXIT(
      {
        explain_aborts(4);
        std::abort();
      },
      testing::KilledBySignal(SIGABRT), "");
}
#endif

}  // namespace
}  // namespace gradrail
