#pragma once

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

#include "gradrail/clock.h"

namespace gradrail::conformance {

/// Failure of a test that cannot continue. It is an exception, so that the bodies of peers are straight code. The
/// harness catches it at the end of every peer; GoogleTest catches it in the test itself.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Time limit for any expected event: 20 s, multiplied by GRADRAIL_PATIENCE on a busy machine or an emulated processor.
Duration timeout();

/// One end of a pipe beside the transport under test: addresses, keys and "go on" travel over it, as whole strings.
class Channel {
 public:
  static std::array<Channel, 2> pair();

  explicit Channel(int fd) : fd_(fd) {}
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&&) = delete;
  ~Channel();

  void send(std::string_view text);
  /// Throws Broken when nothing comes within timeout() or the other end has gone.
  std::string receive();
  bool has_something() const;
  /// Makes the other end's receive() throw.
  void hang_up();

 private:
  void read_exactly(char* data, size_t bytes);

  int fd_;
};

}  // namespace gradrail::conformance
