#include "bench/peers/many_sockets.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "bench/driver/children.h"
#include "bench/peers/sockets.h"

namespace gradrail::bench {
namespace {

struct EchoPeer {
  FileDescriptor fd;
  pid_t process = 0;
  std::vector<char> bytes;  ///< memory for a worker's slot
  uint64_t received = 0;
};

void request_until_closed(int fd, uint64_t bytes) {
  std::vector<char> request(bytes, 1), answer(bytes);
  while (send_all(fd, request.data(), bytes) && receive_all(fd, answer.data(), bytes)) {
  }
}

double thread_us() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return 1e6 * static_cast<double>(used.tv_sec) + 1e-3 * static_cast<double>(used.tv_nsec);
}

/// Answers the peers until `end`. Returns the number of answers, or nullopt if a connection broke.
std::optional<uint64_t> answer_until(TimePoint end, int epoll, const std::vector<char>& answer) {
  constexpr int kLongestWaitMs = 10;
  std::array<epoll_event, 64> events;
  uint64_t answers = 0;
  while (Clock::now() < end) {
    const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), kLongestWaitMs);
    for (int i = 0; i < count; ++i) {
      EchoPeer& peer = *static_cast<EchoPeer*>(events[i].data.ptr);
      const ssize_t got = recv(peer.fd.get(), &peer.bytes[peer.received], peer.bytes.size() - peer.received, 0);
      if (got <= 0) return std::nullopt;
      peer.received += static_cast<uint64_t>(got);
      if (peer.received < peer.bytes.size()) continue;
      peer.received = 0;
      // The call does not block for long: a peer with a complete request receives.
      if (!send_all(peer.fd.get(), answer.data(), answer.size())) return std::nullopt;
      ++answers;
    }
  }
  return answers;
}

}  // namespace

std::optional<double> echo_us(uint64_t bytes, uint32_t peers, double seconds) {
  const FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  std::vector<EchoPeer> list(peers);
  bool good = epoll.get() >= 0;
  for (EchoPeer& peer : list) {
    std::string failed;
    if (!good) break;
    const auto request = [bytes](int fd) { request_until_closed(fd, bytes); };
    peer.fd = FileDescriptor(connect_to_child(request, peer.process, failed));
    peer.bytes.resize(bytes);
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &peer}};
    good = peer.fd.get() >= 0 && epoll_ctl(epoll.get(), EPOLL_CTL_ADD, peer.fd.get(), &event) == 0;
  }
  const std::vector<char> answer(bytes, 2);
  std::optional<uint64_t> answers;
  double used_us = 0.0;
  if (good && answer_until(Clock::now() + from_seconds(seconds * 0.1), epoll.get(), answer)) {
    const double before_us = thread_us();
    answers = answer_until(Clock::now() + from_seconds(seconds), epoll.get(), answer);
    used_us = thread_us() - before_us;
  }
  // Later processes have copies of the earlier descriptors, so that closing them would not end the connections.
  for (const EchoPeer& peer : list) shutdown(peer.fd.get(), SHUT_RDWR);
  for (const EchoPeer& peer : list)
    if (peer.fd.get() >= 0) end_child(peer.process);
  if (!answers || *answers == 0) return std::nullopt;
  return used_us / static_cast<double>(*answers);
}

}  // namespace gradrail::bench
