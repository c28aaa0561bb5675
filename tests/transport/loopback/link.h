#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "tests/transport/loopback/doorbell.h"
#include "tests/transport/loopback/memory_region.h"
#include "tests/transport/loopback/network.h"

namespace gradrail::transport::loopback {

/// An operation posted and not yet carried out by the peer.
struct Operation {
  std::byte* memory = nullptr;  ///< the poster's: source of a put, target of a get
  size_t bytes = 0;
  std::string key;
  uint64_t offset = 0;
  std::optional<uint64_t> immediate;
  uint64_t tag = 0;
  std::vector<std::byte> message;
  TimePoint arrives;  ///< time that the network sets; without one, immediate
};

/// Operations of one lane stay in order; lanes are independent of each other, as connection.h allows.
enum class Lane : uint8_t { message, get, put };
constexpr size_t kLanes = 3;

/// Operations of one end, and results that are still to be reported to it.
struct Direction {
  struct Done {
    uint64_t tag = 0;
    bool is_get = false;
  };
  std::array<std::deque<Operation>, kLanes> lanes;
  std::deque<Done> done;
};

/// An end in the view of the other one.
struct End {
  std::string name;
  /// shared_ptr: either context may be destroyed while the other still rings or looks up.
  std::shared_ptr<Doorbell> doorbell;
  std::shared_ptr<SharedRegionTable> regions;
  uint64_t place = 0;  ///< Network::place()
};

/// State that both ends of a connection share. Ends are numbered: 0 connected, 1 accepted.
/// Invariants, under the mutex:
///  1. A Direction holds at most kQueueDepth operations and notices together.
///  2. Once `lost` is not OK it stays so, and no lane is used again.
///  3. Memory named by an Operation is only accessed with the mutex held: the end that marks the link lost may free it.
struct Link {
  Link(End connected, End accepted) : ends{std::move(connected), std::move(accepted)} {}

  const std::array<End, 2> ends;
  Network* const network = loopback::network();  ///< null: none
  Mutex mutex;
  std::array<Direction, 2> directions ABSL_GUARDED_BY(mutex);
  absl::Status lost ABSL_GUARDED_BY(mutex);
  /// Time until which posts of the end that did not cause the loss have no effect. TimePoint(): both ends detect it
  /// immediately.
  TimePoint loss_arrives ABSL_GUARDED_BY(mutex);
};

/// Posted and not yet reported, for one direction of one connection: what the smallest real queues hold.
constexpr size_t kQueueDepth = 1024;

}  // namespace gradrail::transport::loopback
