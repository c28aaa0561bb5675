#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/launcher/rendezvous.h"

namespace gradrail::tools {

/// A task's first words.
struct Hello {
  std::string version;
  std::string job;  ///< Launch::job: those of another one have come to the wrong address
  ps::Launch::Role role = ps::Launch::Role::by_rank;
  std::optional<uint32_t> rank;
  uint32_t size = 0;
  uint32_t ps_count = 0;
  std::string host_id;
  std::string address;
  std::string cpus;  ///< that it may use, as in taskset
};

Hello hello_of(const Attendance& attendance);
nlohmann::json to_json(const Hello& hello);
/// Nothing where it is none.
std::optional<Hello> hello_from(const nlohmann::json& message);

nlohmann::json to_json(const Seat& seat);
std::optional<Seat> seat_from(const nlohmann::json& message);

/// "rank 3", "worker/2", "a ps".
std::string name_of(const Hello& hello);

/// Which tasks have come. Each gets the index that its launcher told, or the first that is free.
class Seating {
 public:
  Seating(uint32_t size, uint32_t ps_count) : ps_(ps_count), workers_(size - ps_count) {}

  /// Errors  ALREADY_EXISTS: that seat is taken; RESOURCE_EXHAUSTED: more than there are seats.
  absl::StatusOr<ps::TaskId> take(const Hello& hello);
  /// By a guest, at this address of ours: one that others can reach is kept.
  void first_ps_reached_at(const std::string& address);
  std::vector<std::string> missing() const;  ///< "ps/1", "worker/0"
  /// Once nobody is missing.
  Seat seat_of(const ps::TaskId& task) const;

 private:
  using Row = std::vector<std::optional<Hello>>;
  std::string address_of(const Hello& hello) const;
  Row ps_;
  Row workers_;
};

}  // namespace gradrail::tools
