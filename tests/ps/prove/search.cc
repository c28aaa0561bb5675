#include "tests/ps/prove/search.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "fmt/format.h"
#include "tests/ps/prove/bytes.h"
#include "tests/ps/prove/world.h"

namespace gradrail::ps::prove {
namespace {

using NodeIndex = uint32_t;
constexpr NodeIndex kNone = UINT32_MAX;

struct Node {
  NodeIndex parent = kNone;
  NodeIndex drain = kNone;  ///< the state after the first event that is no fault; kNone: the state is complete
  uint32_t depth = 0;
  Event event;
};

struct HashOf {
  size_t operator()(const Fingerprint& fingerprint) const { return fingerprint.low; }
};

std::vector<Event> path_to(const std::vector<Node>& nodes, NodeIndex index) {
  std::vector<Event> path;
  for (; index != kNone && nodes[index].parent != kNone; index = nodes[index].parent)
    path.push_back(nodes[index].event);
  std::reverse(path.begin(), path.end());
  return path;
}

/// Where the search is, for the message of a broken GRADRAIL_CHECK in the code under test.
struct Place {
  const std::vector<Node>* nodes = nullptr;
  NodeIndex node = kNone;
  Event event;
} place;

/// Only abort() raises the signal, at a known point of this thread: the handler may use all functions.
void print_place(int /*signal*/) {
  if (place.nodes != nullptr) {
    for (const Event& event : path_to(*place.nodes, place.node)) fmt::print("    {}\n", describe(event));
    fmt::print("    {}\nviolation: the code stopped itself after {} states\n", describe(place.event),
               place.nodes->size());
  }
  std::fflush(stdout);
  std::signal(SIGABRT, SIG_DFL);
}

/// Only faults may happen.
bool is_blocked(const std::vector<Event>& events) {
  return std::all_of(events.begin(), events.end(), [](const Event& event) { return event.is_fault(); });
}

class Search {
 public:
  Search(const Config& config, uint64_t state_limit) : state_limit_(state_limit) {
    World first(config);
    fail(first.violation(), kNone);
    visit(std::move(first), {});
    place = {.nodes = &nodes_};
    std::signal(SIGABRT, print_place);
  }
  ~Search() {
    std::signal(SIGABRT, SIG_DFL);
    place = {};
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  Result run() {
    const auto begin = std::chrono::steady_clock::now();
    NodeIndex index = 0;
    while (!frontier_.empty() && result_.violation.empty() && result_.is_complete) {
      World world = std::move(frontier_.front());
      frontier_.pop_front();
      expand(world, index++);
    }
    if (result_.violation.empty() && result_.is_complete) check_drains();
    result_.states = nodes_.size();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(result_);
  }

 private:
  /// Returns the node of the state, which is new or known.
  NodeIndex visit(World world, Node node) {
    const auto [entry, is_new] =
        known_.try_emplace(fingerprint_of(world.bytes()), static_cast<NodeIndex>(nodes_.size()));
    if (!is_new) return entry->second;
    nodes_.push_back(node);
    result_.depth = std::max<uint64_t>(result_.depth, node.depth);
    frontier_.push_back(std::move(world));
    if (nodes_.size() >= state_limit_) result_.is_complete = false;
    return entry->second;
  }

  void expand(World& world, NodeIndex index) {
    place.node = index;
    bool is_drained = false;
    const std::vector<Event> events = world.events();
    const std::string missing = is_blocked(events) ? world.incomplete() : "";
    for (const Event& event : events) {
      place.event = event;
      World next = &event == &events.back() ? std::move(world) : world;
      next.run(event);
      ++result_.transitions;
      Node node{.parent = index, .depth = nodes_[index].depth + 1, .event = event};
      if (!next.violation().empty()) {
        nodes_.push_back(node);
        return fail(next.violation(), static_cast<NodeIndex>(nodes_.size() - 1));
      }
      const NodeIndex target = visit(std::move(next), node);
      if (is_drained || event.is_fault()) continue;
      is_drained = true;
      nodes_[index].drain = target;
    }
    if (!is_drained && !missing.empty()) fail("no progress: " + missing, index);
  }

  /// Follows the drain of each state. It must end: a cycle is a livelock.
  void check_drains() {
    enum class Mark : uint8_t { unknown, open, ends };
    std::vector<Mark> marks(nodes_.size(), Mark::unknown);
    std::vector<NodeIndex> open;
    for (NodeIndex first = 0; first < nodes_.size(); ++first) {
      NodeIndex at = first;
      for (; at != kNone && marks[at] == Mark::unknown; at = nodes_[at].drain) {
        marks[at] = Mark::open;
        open.push_back(at);
      }
      if (at != kNone && marks[at] == Mark::open) return fail("no progress: the events repeat for ever", at);
      for (const NodeIndex each : open) marks[each] = Mark::ends;
      open.clear();
    }
  }

  void fail(std::string violation, NodeIndex index) {
    result_.violation = std::move(violation);
    result_.path = path_to(nodes_, index);
  }

  const uint64_t state_limit_;
  Result result_;
  std::vector<Node> nodes_;
  std::deque<World> frontier_;
  absl::flat_hash_map<Fingerprint, NodeIndex, HashOf> known_;
};

}  // namespace

Result search(const Config& config, uint64_t state_limit) { return Search(config, state_limit).run(); }

}  // namespace gradrail::ps::prove
