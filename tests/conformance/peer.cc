#include "conformance/peer.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <utility>

namespace gradrail::conformance {
namespace {

/// Long enough for a body in which all waits time out in turn, and shorter than ctest's limit.
Duration join_timeout() { return timeout() * 2; }

void run_body(const Setup& setup, const PeerBody& body, Channel& channel) {
  try {
    Side side(*setup.transport);
    body(side, channel);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "peer: " << error.what();
  }
}

/// Sends the child's failures to the parent, which alone reports them: output of the child does not count as a failure.
class FailurePipe final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePipe(int fd) : fd_(fd) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* file = result.file_name() == nullptr ? "?" : result.file_name();
    const std::string text =
        std::string(file) + ":" + std::to_string(result.line_number()) + ": " + result.message() + "\n";
    [[maybe_unused]] const ssize_t written = write(fd_, text.data(), text.size());
  }

 private:
  int fd_;
};

[[noreturn]] void run_child(const Setup& setup, const PeerBody& body, Channel& channel, int failures_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no process waits for this one once the test has ended
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailurePipe(failures_fd));
  run_body(setup, body, channel);
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

/// Everything until the child has closed its end, or until the deadline.
std::pair<std::string, bool> read_to_end(int fd, TimePoint deadline) {
  std::string text;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return {text, false};
    char part[4096];
    const ssize_t got = read(fd, part, sizeof(part));
    if (got <= 0) return {text, true};
    text.append(part, static_cast<size_t>(got));
  }
}

}  // namespace

ProcessPeer::ProcessPeer(const Setup& setup, const PeerBody& body) : ProcessPeer(setup, body, Channel::pair()) {}

ProcessPeer::ProcessPeer(const Setup& setup, const PeerBody& body, std::array<Channel, 2> ends)
    : Peer(std::move(ends[0])) {
  int failures[2];
  if (pipe(failures) != 0) throw Broken("pipe failed");
  std::fflush(nullptr);  // else the child prints our buffered output once more
  pid_ = fork();
  if (pid_ < 0) throw Broken("fork failed");
  if (pid_ == 0) {
    close(failures[0]);
    { const Channel closed_here = std::move(channel_); }  // or it would never see us go
    run_child(setup, body, ends[1], failures[1]);
  }
  close(failures[1]);
  failures_fd_ = failures[0];
}

ProcessPeer::~ProcessPeer() {
  if (pid_ > 0) {
    signal(SIGKILL);
    reap();
  }
  close(failures_fd_);
}

void ProcessPeer::join() {
  const auto [failures, ended] = read_to_end(failures_fd_, Clock::now() + join_timeout());
  if (!ended) {
    ADD_FAILURE() << "peer process does not end; killed\n" << failures;
    signal(SIGKILL);
    reap();
    return;
  }
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  if (!failures.empty()) ADD_FAILURE() << "in the peer process:\n" << failures;
  if (failures.empty() && status != 0) ADD_FAILURE() << "peer process ended with wait status " << status;
}

void ProcessPeer::signal(int number) const { ::kill(pid_, number); }

void ProcessPeer::stop() {
  signal(SIGSTOP);
  int status = 0;
  if (waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) throw Broken("peer process did not stop");
}

void ProcessPeer::reap() { waitpid(std::exchange(pid_, -1), nullptr, 0); }

ThreadPeer::ThreadPeer(const Setup& setup, PeerBody body) : ThreadPeer(setup, std::move(body), Channel::pair()) {}

ThreadPeer::ThreadPeer(const Setup& setup, PeerBody body, std::array<Channel, 2> ends)
    : Peer(std::move(ends[0])), theirs_(std::move(ends[1])) {
  std::packaged_task<void()> task([this, setup, body = std::move(body)] { run_body(setup, body, theirs_); });
  ended_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

ThreadPeer::~ThreadPeer() {
  if (!thread_.joinable()) return;
  channel_.hang_up();  // the test has given up: so should the peer
  thread_.join();
}

void ThreadPeer::join() {
  if (ended_.wait_for(join_timeout()) != std::future_status::ready) {
    std::fprintf(stderr, "peer thread does not end\n");
    std::abort();  // a thread cannot be killed
  }
  thread_.join();
}

std::unique_ptr<Peer> start_peer(const Setup& setup, PeerBody body) {
  if (setup.peers == Peers::processes) return std::make_unique<ProcessPeer>(setup, body);
  return std::make_unique<ThreadPeer>(setup, std::move(body));
}

}  // namespace gradrail::conformance
