// Whole-system simulation: the shipped client and server in one process, over a simulated network, disk and clock.
#include <fcntl.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parse_number.h"
#include "fmt/format.h"
#include "tests/simulation/world.h"
#include "tests/transport/loopback/context.h"
#include "transport/registry.h"

namespace {

using namespace gradrail;
using namespace gradrail::simulation;

struct Arguments {
  uint64_t seeds = 0;  ///< number of runs; 0: until `faults`
  uint64_t first_seed = 1;
  std::optional<uint64_t> seed;  ///< this run alone
  uint64_t faults = 0;           ///< runs until so many faults have happened
  bool trace = false;
  bool log = false;
  Stress stress;
  uint64_t failures = 5;  ///< failed runs after which it stops
};

/// A result as the child sends it to its parent: fixed fields, then the texts.
struct Wire {
  uint64_t hash, events, steps, exact_steps;
  double virtual_seconds;
  uint64_t faults[kFaults];
  bool is_complete;
};

constexpr int kUsage = 2;
/// A run lasts below a second: one that needs more time waits for something outside of the simulation.
constexpr unsigned kRunSeconds = 120;

int usage() {
  std::fprintf(stderr,
               "usage: simulation [--seeds N] [--from SEED] [--faults N] [--failures N]   until N seeds or faults, or "
               "N failed runs\n"
               "       simulation --seed SEED [--trace] [--log]            one run, with its events\n"
               "       simulation --replay SEED                            runs a seed twice, compares the two runs\n"
               "each: [--quorum] [--few-slots]   all runs in mode quorum; with 4 to 11 buckets that share places\n");
  return kUsage;
}

void write_all(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t wrote = ::write(fd, static_cast<const char*>(data) + done, bytes - done);
    if (wrote <= 0) std::abort();
    done += static_cast<size_t>(wrote);
  }
}

std::string text_of(const Stress& stress) {
  return fmt::format("{}{}", stress.quorum ? " --quorum" : "", stress.few_slots ? " --few-slots" : "");
}

/// The run of this process.
struct Running {
  uint64_t seed = 0;
  Stress stress;
} running;

void print_failure(const std::string& what) {
  std::printf("violation: %s\n", what.c_str());
  std::printf("The last events:\n");
  for (const std::string& event : Scheduler::instance().last_events()) std::printf("  %s\n", event.c_str());
  std::printf("Replay: build/release/tests/simulation --seed %llu%s --trace\n",
              static_cast<unsigned long long>(running.seed), text_of(running.stress).c_str());
  std::fflush(stdout);
}

void on_abort(int signal) {
  // A broken invariant of the shipped code, or a crash: the events lead there.
  std::signal(signal, SIG_DFL);
  std::printf("seed %llu\n", static_cast<unsigned long long>(running.seed));
  print_failure(fmt::format("stopped itself by signal {}", signal));
  std::raise(signal);
}

/// Runs in a child process: it begins from the same state as all others, and its memory ends with it.
[[noreturn]] void run_child(uint64_t seed, const Arguments& arguments, int out) {
  running = {.seed = seed, .stress = arguments.stress};
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) std::signal(signal, on_abort);
  alarm(arguments.trace ? 0 : kRunSeconds);
  Scheduler::instance().print_trace = arguments.trace;
  World world(seed, arguments.stress);
  const RunResult result = world.run();
  Wire wire{.hash = result.hash,
            .events = result.events,
            .steps = result.steps,
            .exact_steps = result.exact_steps,
            .virtual_seconds = result.virtual_seconds,
            .faults = {},
            .is_complete = result.is_complete};
  std::copy(result.faults.begin(), result.faults.end(), wire.faults);
  write_all(out, &wire, sizeof(wire));
  if (!result.violation.empty()) {
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), result.shape.c_str());
    print_failure(result.violation);
  }
  std::fflush(stdout);
  _exit(result.violation.empty() ? 0 : 1);
}

struct Outcome {
  bool ok = false;
  Wire wire = {};
};

Outcome run_seed(uint64_t seed, const Arguments& arguments) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    ::close(ends[0]);
    run_child(seed, arguments, ends[1]);
  }
  ::close(ends[1]);
  Outcome outcome;
  size_t got = 0;
  for (ssize_t some = 0; got < sizeof(Wire); got += static_cast<size_t>(some)) {
    some = ::read(ends[0], reinterpret_cast<char*>(&outcome.wire) + got, sizeof(Wire) - got);
    if (some <= 0) break;
  }
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.ok = got == sizeof(Wire) && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  World::remove_folder_of(child);
  return outcome;
}

std::optional<Arguments> parse(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const std::pair<const char*, bool*> switches[] = {{"--trace", &arguments.trace},
                                                      {"--log", &arguments.log},
                                                      {"--quorum", &arguments.stress.quorum},
                                                      {"--few-slots", &arguments.stress.few_slots}};
    const auto* const found =
        std::find_if(std::begin(switches), std::end(switches), [&](const auto& each) { return word == each.first; });
    if (found != std::end(switches)) {
      *found->second = true;
      continue;
    }
    const std::optional<uint64_t> number = i + 1 < count ? parse_number<uint64_t>(words[++i]) : std::nullopt;
    if (!number.has_value()) return std::nullopt;
    if (word == "--seeds") {
      arguments.seeds = *number;
    } else if (word == "--from") {
      arguments.first_seed = *number;
    } else if (word == "--seed") {
      arguments.seed = *number;
    } else if (word == "--failures") {
      arguments.failures = *number;
    } else if (word == "--faults") {
      arguments.faults = *number;
    } else if (word == "--replay") {
      arguments.seed = *number;
      arguments.seeds = 2;
    } else {
      return std::nullopt;
    }
  }
  if (!arguments.seed && arguments.seeds == 0 && arguments.faults == 0) arguments.seeds = 100;
  return arguments;
}

/// Two runs of one seed must be equal.
int replay(const Arguments& arguments) {
  const Outcome first = run_seed(*arguments.seed, arguments), second = run_seed(*arguments.seed, arguments);
  std::printf("seed %llu: %016llx and %016llx\n", static_cast<unsigned long long>(*arguments.seed),
              static_cast<unsigned long long>(first.wire.hash), static_cast<unsigned long long>(second.wire.hash));
  return first.ok && second.ok && first.wire.hash == second.wire.hash ? 0 : 1;
}

int run_one(const Arguments& arguments) {
  const Outcome outcome = run_seed(*arguments.seed, arguments);
  std::printf("seed %llu: hash %016llx, %llu events, %llu steps, %.1f s of virtual time, %s\n",
              static_cast<unsigned long long>(*arguments.seed), static_cast<unsigned long long>(outcome.wire.hash),
              static_cast<unsigned long long>(outcome.wire.events), static_cast<unsigned long long>(outcome.wire.steps),
              outcome.wire.virtual_seconds, outcome.wire.is_complete ? "complete" : "not complete");
  return outcome.ok ? 0 : 1;
}

uint64_t sum(const Wire& wire) {
  uint64_t all = 0;
  for (const uint64_t count : wire.faults) all += count;
  return all;
}

void print_totals(const Wire& total, uint64_t runs, uint64_t complete, uint64_t failed, double seconds) {
  std::printf(
      "%llu runs, %llu complete, %llu failed: %llu faults, %llu events, %llu steps (%llu compared bit for bit), "
      "%.0f s of virtual time in %.1f s\n",
      static_cast<unsigned long long>(runs), static_cast<unsigned long long>(complete),
      static_cast<unsigned long long>(failed), static_cast<unsigned long long>(sum(total)),
      static_cast<unsigned long long>(total.events), static_cast<unsigned long long>(total.steps),
      static_cast<unsigned long long>(total.exact_steps), total.virtual_seconds, seconds);
  for (size_t i = 0; i < kFaults; ++i) {
    std::printf("  %-28s %10llu\n", name_of(static_cast<Fault>(i)), static_cast<unsigned long long>(total.faults[i]));
  }
}

int run_many(const Arguments& arguments) {
  const auto begun = std::chrono::steady_clock::now();
  Wire total = {};
  uint64_t runs = 0, complete = 0, failed = 0;
  for (uint64_t seed = arguments.first_seed; failed < arguments.failures; ++seed) {
    if (arguments.seeds > 0 && runs >= arguments.seeds) break;
    if (arguments.faults > 0 && sum(total) >= arguments.faults) break;
    const Outcome outcome = run_seed(seed, arguments);
    ++runs;
    if (!outcome.ok) ++failed;
    if (outcome.wire.is_complete) ++complete;
    total.events += outcome.wire.events;
    total.steps += outcome.wire.steps;
    total.exact_steps += outcome.wire.exact_steps;
    total.virtual_seconds += outcome.wire.virtual_seconds;
    for (size_t i = 0; i < kFaults; ++i) total.faults[i] += outcome.wire.faults[i];
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  print_totals(total, runs, complete, failed, seconds);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  // Addresses decide the order of some tables: they must be the same in each run of a seed.
  if ((personality(0xffffffff) & ADDR_NO_RANDOMIZE) == 0 && personality(ADDR_NO_RANDOMIZE) != -1) {
    execv("/proc/self/exe", words);
  }
  const std::optional<Arguments> arguments = parse(count, words);
  if (!arguments.has_value()) return usage();
  setenv("GRADRAIL_LOG", arguments->log ? "debug" : "off", 1);
  start_log("simulation");
  // Made at the first use, and in each child the same.
  transport::loopback::add_to_transports();
  transport::host_id();
  if (arguments->seed.has_value()) return arguments->seeds == 2 ? replay(*arguments) : run_one(*arguments);
  return run_many(*arguments);
}
