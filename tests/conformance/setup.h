#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "transport/registry.h"

namespace gradrail::conformance {

enum class Peers { threads, processes };

/// Parameters of one run of the suite: a transport, and the kind of its peers.
struct Setup {
  const transport::Transport* transport = nullptr;
  Peers peers = Peers::threads;
  std::string name() const;
};
std::ostream& operator<<(std::ostream& out, const Setup& setup);

/// Every transport of this build; processes as peers where the transport can leave its process.
std::vector<Setup> all_setups();
std::vector<Setup> process_setups();

/// Whether the transport connects only contexts of one process.
bool in_process_only(const transport::Transport& transport);

/// Whether GRADRAIL_REQUIRE (names separated by commas) forbids leaving this transport out.
bool is_required(std::string_view transport_name);

/// Throws Broken.
std::unique_ptr<transport::Context> open(const transport::Transport& transport);

/// An address that lets the transport choose a free one on this host.
std::string any_address(const transport::Transport& transport);

/// The one suite. Skips, or fails where GRADRAIL_REQUIRE says so, what this host or this build cannot run.
class Conformance : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override;
};

/// Tests that need to kill or stop their peer: run only where peers can be processes.
class ProcessConformance : public Conformance {};

}  // namespace gradrail::conformance

/// Ends the test because the transport cannot do what it is about; fails it instead where skips are forbidden.
#define GRADRAIL_CANNOT(setup, reason)                                                                           \
  do {                                                                                                           \
    if (::gradrail::conformance::is_required((setup).transport->name)) FAIL() << "skip forbidden: " << (reason); \
    GTEST_SKIP() << (reason);                                                                                    \
  } while (false)
