#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "conformance/channel.h"
#include "conformance/setup.h"
#include "conformance/side.h"

namespace gradrail::conformance {

/// Body of a peer: it receives an open transport of its own and its end of the test channel.
using PeerBody = std::function<void(Side&, Channel&)>;

/// A peer of the test: a thread, or a forked process. Start peers before the test opens anything of its own, so that a
/// child inherits no context. Whatever fails in a peer fails the test.
class Peer {
 public:
  virtual ~Peer() = default;
  Channel& channel() { return channel_; }
  /// Waits until the body has returned and reports its failures; a body that does not return in time is a failure.
  virtual void join() = 0;

 protected:
  explicit Peer(Channel channel) : channel_(std::move(channel)) {}
  Channel channel_;
};

/// A peer that signals can reach: for tests of sudden exits.
class ProcessPeer final : public Peer {
 public:
  ProcessPeer(const Setup& setup, const PeerBody& body);
  ~ProcessPeer() override;
  void join() override;
  void signal(int number) const;
  /// Sends SIGSTOP and returns once the peer stands still.
  void stop();
  /// After signal(SIGKILL): not a failure of the test.
  void reap();

 private:
  ProcessPeer(const Setup& setup, const PeerBody& body, std::array<Channel, 2> ends);

  int pid_ = -1;
  int failures_fd_ = -1;
};

class ThreadPeer final : public Peer {
 public:
  ThreadPeer(const Setup& setup, PeerBody body);
  ~ThreadPeer() override;
  void join() override;

 private:
  ThreadPeer(const Setup& setup, PeerBody body, std::array<Channel, 2> ends);

  Channel theirs_;
  std::future<void> ended_;
  std::thread thread_;
};

std::unique_ptr<Peer> start_peer(const Setup& setup, PeerBody body);

}  // namespace gradrail::conformance
