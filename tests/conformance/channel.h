#pragma once

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace gradrail::conformance {

/// A test that cannot go on. Thrown, so that the bodies of peers read as straight lines: the harness catches it at the
/// end of every peer, GoogleTest in the test itself.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Longest time that anything which should happen may take on a machine that is busy with other things: 20 s, or what
/// GRADRAIL_TEST_PATIENCE_S says, where the processor is an emulated one.
Duration patience();

/// One end of a pipe beside the transport under test: addresses, keys and "go on" travel over it, as whole strings.
class Channel {
 public:
  static std::array<Channel, 2> pair();

  explicit Channel(int fd) : fd_(fd) {}
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&&) = delete;
  ~Channel();

  void send(std::string_view text);
  /// Throws Broken when nothing comes within patience() or the other end has gone.
  std::string receive();
  bool has_something() const;
  /// Makes the other end's receive() throw.
  void hang_up();

 private:
  void read_exactly(char* data, size_t bytes);

  int fd_;
};

}  // namespace gradrail::conformance
