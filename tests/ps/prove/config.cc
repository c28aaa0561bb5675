#include "tests/ps/prove/config.h"

#include "fmt/format.h"

namespace gradrail::ps::prove {
namespace {

struct NamedMode {
  const char* name;
  Mode mode;
};

constexpr Mode kAsync{ModeKind::async, 2};
constexpr Mode kSync{ModeKind::sync, 2};
constexpr Mode kSsp{ModeKind::ssp, 2, 1};
constexpr Mode kDrop{ModeKind::quorum, 2, 1, {}, true};
constexpr Mode kQuorum{ModeKind::quorum, 2, 1};
constexpr Mode kGrace{ModeKind::quorum, 2, 1, {.seconds = 1}};
constexpr NamedMode kModes[] = {{"async", kAsync}, {"sync", kSync},     {"ssp", kSsp},
                                {"drop", kDrop},   {"quorum", kQuorum}, {"grace", kGrace}};

}  // namespace

std::vector<Config> quick_configs() {
  std::vector<Config> all;
  for (const auto& [text, mode] : kModes) {
    const std::string name = text;
    all.push_back(
        {.name = name + "-connections", .mode = mode, .faults = {.disconnects = 1, .copies = 1, .forgeries = 1}});
    all.push_back(
        {.name = name + "-restart", .mode = mode, .marks_finished = true, .faults = {.forgeries = 1, .restarts = 1}});
    all.push_back(
        {.name = name + "-removal", .mode = mode, .counts_staleness = true, .faults = {.copies = 1, .removals = 1}});
    all.push_back({.name = name + "-finish", .mode = mode, .marks_finished = true, .faults = {.copies = 1}});
    all.push_back(
        {.name = name + "-opening", .mode = mode, .steps = 1, .is_initialised = false, .faults = {.restarts = 1}});
    all.push_back({.name = name + "-takeover", .mode = mode, .has_backup = true, .faults = {.primary_losses = 1}});
  }
  all.push_back({.name = "async-links",
                 .mode = kAsync,
                 .steps = 1,
                 .has_backup = true,
                 .faults = {.disconnects = 1, .primary_losses = 1, .link_losses = 1}});
  all.push_back(
      {.name = "async-backup-loss", .mode = kAsync, .steps = 1, .has_backup = true, .faults = {.backup_losses = 1}});
  all.push_back({.name = "async-no-room",
                 .mode = kAsync,
                 .steps = 1,
                 .has_backup = true,
                 .faults = {.primary_losses = 1, .full_queues = 1}});
  all.push_back({.name = "async-takeover-removal",
                 .mode = kAsync,
                 .steps = 1,
                 .has_backup = true,
                 .faults = {.removals = 1, .primary_losses = 1}});
  all.push_back({.name = "sync-takeover-restart",
                 .mode = kSync,
                 .has_backup = true,
                 .faults = {.restarts = 1, .primary_losses = 1}});
  all.push_back({.name = "drop-three",
                 .mode = {ModeKind::quorum, 3, 2, {}, true},
                 .steps = 1,
                 .faults = {.copies = 1, .kills = 1}});
  all.push_back({.name = "quorum-late-buckets", .mode = kQuorum, .buckets = 2, .faults = {.copies = 1}});
  all.push_back({.name = "quorum-late-buckets-of-three", .mode = {ModeKind::quorum, 3, 2}, .buckets = 2, .steps = 1});
  all.push_back({.name = "grace-old-windows",
                 .mode = kGrace,
                 .steps = 3,
                 .faults = {.disconnects = 1, .removals = 1, .old_windows = 1}});
  all.push_back({.name = "grace-late-buckets", .mode = kGrace, .buckets = 2, .faults = {.copies = 1}});
  all.push_back(
      {.name = "grace-of-three", .mode = {ModeKind::quorum, 3, 2, {.seconds = 1}}, .steps = 2, .faults = {.kills = 1}});
  all.push_back({.name = "quorum-of-three", .mode = {ModeKind::quorum, 3, 2}, .steps = 2, .faults = {.kills = 1}});
  for (const auto& [text, mode] : kModes) {
    all.push_back({.name = std::string(text) + "-place",
                   .mode = mode,
                   .buckets = 2,
                   .shares_place = true,
                   .faults = {.disconnects = 1, .copies = 1}});
  }
  all.push_back(
      {.name = "quorum-place-of-three", .mode = {ModeKind::quorum, 3, 2}, .buckets = 2, .shares_place = true});
  // A third of the time of this set. Without it no cluster finds the mutation takeover-keeps-the-floor.
  all.push_back({.name = "ssp-takeover-restart",
                 .mode = kSsp,
                 .has_backup = true,
                 .faults = {.restarts = 1, .primary_losses = 1}});
  return all;
}

std::vector<Config> full_configs() {
  std::vector<Config> all = quick_configs();
  for (const auto& [text, mode] : kModes) {
    const std::string name = text;
    Mode three = mode;
    three.worker_count = 3;
    all.push_back({.name = name + "-steps", .mode = mode, .steps = 3, .faults = {.disconnects = 1, .copies = 1}});
    all.push_back({.name = name + "-openings",
                   .mode = mode,
                   .steps = 1,
                   .is_initialised = false,
                   .faults = {.disconnects = 1, .restarts = 1}});
    all.push_back({.name = name + "-staleness",
                   .mode = mode,
                   .counts_staleness = true,
                   .marks_finished = true,
                   .faults = {.disconnects = 1, .forgeries = 1, .removals = 1}});
    all.push_back({.name = name + "-buckets", .mode = mode, .buckets = 2, .faults = {.disconnects = 1}});
    all.push_back({.name = name + "-servers", .mode = mode, .servers = 2, .faults = {.disconnects = 1}});
    all.push_back({.name = name + "-join", .mode = mode, .servers = 2, .steps = 1, .faults = {.restarts = 1}});
    all.push_back(
        {.name = name + "-places", .mode = mode, .buckets = 3, .shares_place = true, .faults = {.disconnects = 1}});
    all.push_back({.name = name + "-places-restart",
                   .mode = mode,
                   .buckets = 2,
                   .shares_place = true,
                   .faults = {.restarts = 1}});
    all.push_back({.name = name + "-places-servers",
                   .mode = mode,
                   .servers = 2,
                   .buckets = 2,
                   .steps = 1,
                   .shares_place = true,
                   .faults = {.disconnects = 1}});
    all.push_back({.name = name + "-places-of-three",
                   .mode = three,
                   .buckets = 2,
                   .steps = 1,
                   .shares_place = true,
                   .faults = {.kills = 1}});
    all.push_back({.name = name + "-places-takeover",
                   .mode = mode,
                   .buckets = 2,
                   .steps = 1,
                   .has_backup = true,
                   .shares_place = true,
                   .faults = {.primary_losses = 1}});
    all.push_back({.name = name + "-three", .mode = three, .faults = {.disconnects = 1}});
    all.push_back({.name = name + "-three-kill", .mode = three, .faults = {.kills = 1}});
    all.push_back({.name = name + "-takeover-links",
                   .mode = mode,
                   .has_backup = true,
                   .faults = {.disconnects = 1, .primary_losses = 1, .link_losses = 1}});
    all.push_back({.name = name + "-takeover-members",
                   .mode = mode,
                   .has_backup = true,
                   .faults = {.restarts = 1, .primary_losses = 1}});
    all.push_back({.name = name + "-takeover-removals",
                   .mode = mode,
                   .has_backup = true,
                   .faults = {.removals = 1, .primary_losses = 1}});
    // The windows of two buckets multiply the states of a quorum. With full queues they would take more than 4 GB.
    all.push_back({.name = name + "-takeover-buckets",
                   .mode = mode,
                   .buckets = 2,
                   .steps = 1,
                   .has_backup = true,
                   .faults = {.primary_losses = 1, .full_queues = mode.grace.any() ? uint8_t{0} : uint8_t{1}}});
    all.push_back({.name = name + "-backup-losses",
                   .mode = mode,
                   .has_backup = true,
                   .faults = {.disconnects = 1, .backup_losses = 1, .link_losses = 1}});
    all.push_back({.name = name + "-three-restart", .mode = three, .faults = {.restarts = 1}});
    all.push_back({.name = name + "-three-takeover",
                   .mode = three,
                   .steps = 1,
                   .has_backup = true,
                   .faults = {.primary_losses = 1}});
    all.push_back({.name = name + "-servers-restart", .mode = mode, .servers = 2, .faults = {.restarts = 1}});
  }
  // The states of two independent servers multiply. The other modes have too many.
  all.push_back({.name = "sync-servers-takeover",
                 .mode = kSync,
                 .servers = 2,
                 .steps = 1,
                 .has_backup = true,
                 .faults = {.primary_losses = 1}});
  return all;
}

std::string describe(const Config& config) {
  return fmt::format("{} workers, {} servers{}, {} buckets, {} steps", config.mode.worker_count, config.servers,
                     config.has_backup ? " with backups" : "", config.buckets, config.steps);
}

}  // namespace gradrail::ps::prove
