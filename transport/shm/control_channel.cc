#include "transport/shm/control_channel.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "transport/shm/native_error.h"

namespace gradrail::transport::shm {

ControlChannel::ControlChannel(FileDescriptor socket, int epoll) : socket_(std::move(socket)), epoll_(epoll) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = socket_.get()}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_.get(), &event);
}

void ControlChannel::watch(bool for_writing) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = socket_.get()}};
  // epoll reports EPOLLHUP in any case, so the end of the peer is still noticed.
  if (for_writing) event.events = EPOLLOUT;  // requests wait until our answers have left
  epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.get(), &event);
}

absl::Status ControlChannel::send(const ControlMessage& message, absl::Span<const int> descriptors) {
  GRADRAIL_CHECK(open());
  // A packet never overtakes the backlog.
  if (backlog_.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(Sent sent, send_packet(socket_.get(), message, descriptors));
    if (sent == Sent::yes) return absl::OkStatus();
    watch(true);
  }
  Waiting waiting{.message = message, .descriptors = {}};
  for (const int fd : descriptors) {
    // The packet holds a copy: the region may be destroyed before the packet leaves.
    waiting.descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!waiting.descriptors.back()) return from_errno(errno, "keep a descriptor for the peer");
  }
  backlog_.push_back(std::move(waiting));
  return absl::OkStatus();
}

absl::Status ControlChannel::send_backlog() {
  while (!backlog_.empty()) {
    std::vector<int> descriptors;
    for (const FileDescriptor& descriptor : backlog_.front().descriptors) descriptors.push_back(descriptor.get());
    GRADRAIL_ASSIGN_OR_RETURN(Sent sent, send_packet(socket_.get(), backlog_.front().message, descriptors));
    if (sent == Sent::would_block) return absl::OkStatus();
    backlog_.pop_front();
  }
  watch(false);
  return absl::OkStatus();
}

void ControlChannel::close_with(const absl::Status& why) {
  if (!open()) return;
  // The peer detects the close of the socket if there is no room for the message.
  (void)send_packet(socket_.get(), make_disconnect(why), {}).ok();
  close();
}

void ControlChannel::close() {
  if (!open()) return;
  // The removal is not left to close(2): a forked child may hold a copy that would keep the registration.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  socket_.reset();
  backlog_.clear();
}

}  // namespace gradrail::transport::shm
