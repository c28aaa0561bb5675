// This suite measures weight publishing: one publisher and readers in separate processes. It measures publish(), the
// lag of verified versions and their bytes, and then publish() again while one reader is suspended.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "CLI/CLI.hpp"
#include "base/clock.h"
#include "base/flags/number_in.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "bench/driver/patience.h"
#include "bench/driver/rounds.h"
#include "bench/driver/subprocess.h"
#include "bench/driver/suite.h"
#include "bench/report/isolated_figures.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "worker/publish/publisher.h"
#include "worker/publish/subscriber.h"

namespace gradrail::bench {
namespace {

constexpr uint64_t kChangesSeed = 1;     // seed of the changes
constexpr uint64_t kFewestVersions = 5;  // least versions of a phase: a median needs a few
constexpr uint64_t kMostVersions = 1000;
constexpr size_t kAddressBytes = 64;  // enough for "127.0.0.1:65535", sent whole

struct PublishScene {
  publish::Format format;
  uint64_t bytes = 0;  ///< size of the fp32 parameters
  uint32_t readers = 8;
  double changed = 0.01;
  uint32_t keep = 2;
  uint64_t versions = 0;  ///< versions of each phase; 0: as many as fill `seconds`
  double seconds = 1.0;

  /// A reader that verifies no version for so long has failed. Large models take seconds on few cores, and one link
  /// carries the bits to all readers.
  Duration reader_limit() const {
    constexpr double kSlowestBytesPerSecond = 1.25e6;  // 10 Mbit/s
    return std::chrono::minutes(3) + link_time(static_cast<double>(bytes) * readers, kSlowestBytesPerSecond);
  }
};

/// A version that a reader has verified. A write of it to a pipe is atomic.
struct Arrival {
  uint32_t reader = 0;
  pid_t process = 0;
  uint64_t version = 0;
  double lag_s = 0.0;
  double verify_s = 0.0;
  uint64_t full_bytes = 0;  ///< received up to now
  uint64_t delta_bytes = 0;
  uint64_t wrong = 0;  ///< versions with a wrong hash
};

/// The process of a reader: it follows the publisher until its end, and reports each version.
absl::Status follow(uint32_t reader, int address, int arrivals, Duration limit) {
  char text[kAddressBytes] = "";
  if (read(address, text, sizeof(text)) != sizeof(text)) return absl::InternalError("the publisher did not start");
  GRADRAIL_ASSIGN_OR_RETURN(const auto subscriber, publish::Subscriber::open({.address = text}));
  GRADRAIL_RETURN_IF_ERROR(subscriber->connect(Clock::now() + limit));
  while (true) {
    const absl::Status status = subscriber->next(Clock::now() + limit);
    if (absl::IsAborted(status)) return absl::OkStatus();  // the publisher has ended
    if (!status.ok()) return status;
    const publish::SubscriberStats& stats = subscriber->stats();
    const Arrival arrival{.reader = reader,
                          .process = getpid(),
                          .version = subscriber->have()->version,
                          .lag_s = stats.last_lag_s,
                          .verify_s = stats.last_verify_s,
                          .full_bytes = stats.full_bytes,
                          .delta_bytes = stats.delta_bytes,
                          .wrong = stats.hash_failures};
    if (write(arrivals, &arrival, sizeof(arrival)) != sizeof(arrival)) return absl::OkStatus();
  }
}

/// A publisher, its parameters, and the readers.
class Audience {
 public:
  Audience(const PublishScene& scene, std::vector<Subprocess>& readers, std::vector<Arrival>& last, int arrivals,
           std::unique_ptr<publish::Publisher> publisher)
      : scene_(scene),
        readers_(readers),
        last_(last),
        arrivals_(arrivals),
        publisher_(std::move(publisher)),
        parameters_(scene.bytes / sizeof(float)),
        random_(kChangesSeed) {
    // Values of a model: without zeros, so that a factor changes each.
    for (float& value : parameters_) value = 0.02f * (1.0f + static_cast<float>(random_() % 1024) / 1024.0f);
  }

  publish::Publisher& publisher() { return *publisher_; }
  uint64_t version() const { return version_; }
  const std::vector<Arrival>& last() const { return last_; }

  /// Changes parameters and publishes them. Returns the microseconds of publish().
  absl::StatusOr<double> publish_next() {
    if (version_ > 0) change();
    const float* const array = parameters_.data();
    const TimePoint start = Clock::now();
    GRADRAIL_RETURN_IF_ERROR(publisher_->publish(++version_, {&array, 1}));
    return seconds_since(start) * 1e6;
  }

  /// Waits until all readers but `suspended` have the newest version. Returns their lags in microseconds.
  absl::StatusOr<std::vector<double>> wait_for_readers(int suspended) {
    std::vector<double> lags;
    const size_t awaited = readers_.size() - (suspended >= 0 ? 1 : 0);
    const TimePoint deadline = Clock::now() + scene_.reader_limit();
    while (lags.size() < awaited) {
      pollfd wait{.fd = arrivals_, .events = POLLIN, .revents = 0};
      Arrival arrival;
      if (poll(&wait, 1, 1000) > 0 && read(arrivals_, &arrival, sizeof(arrival)) == sizeof(arrival)) {
        last_[arrival.reader] = arrival;
        if (arrival.version == version_) lags.push_back(arrival.lag_s * 1e6);
      }
      for (Subprocess& reader : readers_) {
        if (!reader.is_done(Duration::zero())) continue;
        const auto result = reader.result(deadline);
        return absl::InternalError(result.ok() ? result->value("error", "a reader ended")
                                               : std::string(message_of(result.status())));
      }
      if (Clock::now() > deadline) return absl::DeadlineExceededError("a reader has not received a version in time");
    }
    return lags;
  }

 private:
  /// The mean gap between two changed elements is 1 / changed. A factor of 1 + 2^-7 is one step of bf16, or two.
  void change() {
    const auto most = static_cast<uint64_t>(std::max(1.0, std::round(2.0 / scene_.changed) - 1));
    for (size_t i = random_() % most; i < parameters_.size(); i += 1 + random_() % most)
      parameters_[i] *= (random_() & 1) != 0 ? 1.0f + 0x1p-7f : 1.0f - 0x1p-7f;
  }

  const PublishScene& scene_;
  std::vector<Subprocess>& readers_;
  std::vector<Arrival>& last_;
  const int arrivals_;
  std::unique_ptr<publish::Publisher> publisher_;
  std::vector<float> parameters_;
  std::minstd_rand random_;
  uint64_t version_ = 0;
};

struct Phase {
  std::vector<double> publish_us;
  std::vector<double> lag_us;
  double encode_s = 0.0;  ///< time of the last version, as an estimate of the next one
  double verify_s = 0.0;  ///< time of the last reader
};

absl::StatusOr<Phase> play(Audience& audience, const PublishScene& scene, int suspended) {
  Phase phase;
  const TimePoint start = Clock::now();
  for (uint64_t i = 0; i < kMostVersions; ++i) {
    if (scene.versions > 0 ? i >= scene.versions : i >= kFewestVersions && seconds_since(start) > scene.seconds) break;
    GRADRAIL_ASSIGN_OR_RETURN(const double micros, audience.publish_next());
    phase.publish_us.push_back(micros);
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<double> lags, audience.wait_for_readers(suspended));
    phase.lag_us.insert(phase.lag_us.end(), lags.begin(), lags.end());
  }
  phase.encode_s = nlohmann::json::parse(audience.publisher().stats_json()).value("last_encode_s", 0.0);
  phase.verify_s = audience.last().back().verify_s;
  return phase;
}

Figure row(const PublishScene& scene, const std::string& what, std::vector<double>& micros, double bytes) {
  Figure figure;
  figure.path = fmt::format("{} {}", publish::name_of(scene.format), what);
  figure.bytes = scene.bytes;
  figure.count = scene.bytes / sizeof(float);
  figure.times = Times::of(micros);
  figure.alg_bytes = figure.bus_bytes = bytes;
  return figure;
}

absl::StatusOr<std::vector<Figure>> measure_audience(Audience& audience, const PublishScene& scene) {
  Phase first;
  GRADRAIL_ASSIGN_OR_RETURN(const double first_publish, audience.publish_next());
  GRADRAIL_ASSIGN_OR_RETURN(first.lag_us, audience.wait_for_readers(-1));
  const uint64_t full_bytes = audience.last().front().full_bytes;
  GRADRAIL_ASSIGN_OR_RETURN(Phase live, play(audience, scene, -1));
  const double deltas = static_cast<double>(audience.version() - 1);
  const double delta_bytes = static_cast<double>(audience.last().front().delta_bytes) / deltas;

  const pid_t suspended = audience.last().front().process;
  kill(suspended, SIGSTOP);
  absl::StatusOr<Phase> beside = play(audience, scene, 0);
  kill(suspended, SIGCONT);
  if (!beside.ok()) return beside.status();
  // The newest version once more for the reader that was suspended: it alone is awaited.
  const TimePoint resumed = Clock::now();
  GRADRAIL_RETURN_IF_ERROR(audience.publish_next().status());
  GRADRAIL_RETURN_IF_ERROR(audience.wait_for_readers(-1).status());
  const double catch_up_s = seconds_since(resumed);

  uint64_t wrong = 0;
  for (const Arrival& arrival : audience.last()) wrong += arrival.wrong;
  const double bits = static_cast<double>(audience.publisher().model().bytes());
  Figure publish_row = row(scene, "publish()", live.publish_us, static_cast<double>(scene.bytes));
  publish_row.more = {{"first_us", first_publish}};
  Figure suspended_row = row(scene, "publish(), 1 suspended", beside->publish_us, static_cast<double>(scene.bytes));
  suspended_row.more = {{"catch_up_s", catch_up_s}};
  Figure full_row = row(scene, "lag, full", first.lag_us, bits);
  full_row.more = {{"version_bytes", static_cast<double>(full_bytes)}};
  full_row.wrong = wrong;
  Figure delta_row = row(scene, "lag, delta", live.lag_us, bits);
  delta_row.more = {{"version_bytes", delta_bytes},
                    {"of_full", delta_bytes / static_cast<double>(full_bytes)},
                    {"encode_s", live.encode_s},
                    {"verify_s", live.verify_s}};
  Figure beside_row = row(scene, "lag, 1 suspended", beside->lag_us, bits);
  return std::vector<Figure>{publish_row, suspended_row, full_row, delta_row, beside_row};
}

absl::StatusOr<std::vector<Figure>> measure_publishing(const PublishScene& scene) {
  GRADRAIL_ASSIGN_OR_RETURN(const Pipe addresses, open_pipe());
  GRADRAIL_ASSIGN_OR_RETURN(const Pipe arrivals, open_pipe());
  // Readers start first: a process with the threads of a publisher must not fork.
  std::vector<Subprocess> readers;
  for (uint32_t i = 0; i < scene.readers; ++i) {
    readers.emplace_back([&, i]() -> nlohmann::json {
      const absl::Status status = follow(i, addresses.reader.get(), arrivals.writer.get(), scene.reader_limit());
      return {{"error", status.ok() ? "the publisher was lost" : std::string(message_of(status))}, {"ok", status.ok()}};
    });
  }
  publish::PublisherOptions options{.format = scene.format, .keep = scene.keep};
  options.server.listen = "127.0.0.1:0";
  GRADRAIL_ASSIGN_OR_RETURN(
      auto publisher, publish::Publisher::open(options, {{"w", {static_cast<int64_t>(scene.bytes / sizeof(float))}}}));
  const std::string address = publisher->address() + std::string(kAddressBytes - publisher->address().size(), '\0');
  std::vector<Arrival> last(scene.readers);
  Audience audience(scene, readers, last, arrivals.reader.get(), std::move(publisher));
  for (uint32_t i = 0; i < scene.readers; ++i) write_all(addresses.writer.get(), address);
  GRADRAIL_ASSIGN_OR_RETURN(std::vector<Figure> figures, measure_audience(audience, scene));
  audience.publisher().close(scene.reader_limit());
  for (Subprocess& reader : readers) {
    GRADRAIL_ASSIGN_OR_RETURN(const nlohmann::json ended, reader.result(Clock::now() + scene.reader_limit()));
    if (!ended.value("ok", false)) return absl::InternalError(ended.value("error", "a reader failed"));
  }
  return figures;
}

struct PublishOptions {
  uint32_t readers = 8;
  double changed = 0.01;
  std::string weights = "bf16";
  uint32_t keep = 2;

  void add_flags(CLI::App& app) {
    remove_flags(app, {"-w", "-c", "--transport"});
    app.option_defaults()->group("Measurement");
    app.add_option("--readers", readers, "number of readers, each in a process of its own")
        ->transform(NumberIn(2u, 256u))
        ->capture_default_str();
    app.add_option("--changed", changed, "share of the parameters that change between two versions")
        ->transform(NumberIn(1e-9, 1.0))
        ->capture_default_str();
    app.add_option("--weights", weights, "published bits: bf16 or fp32")
        ->check(CLI::IsMember({"bf16", "fp32"}))
        ->capture_default_str();
    app.add_option("--keep", keep, "versions that the publisher keeps")
        ->transform(NumberIn(1u, 1000u))
        ->capture_default_str();
  }
};

absl::StatusOr<int> run_publish_suite(const Options& options, const PublishOptions& own) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, sizes(options, "64M", "64M", sizeof(float)));
  GRADRAIL_ASSIGN_OR_RETURN(const publish::Format format, publish::parse_format(own.weights));
  // The memory has the parameters, and the bits of each stored version, of the next one, and of each reader.
  const double bits = format == publish::Format::bf16 ? 0.5 : 1.0;
  GRADRAIL_RETURN_IF_ERROR(check_available_memory(
      fmt::format("parameters of {} bytes: the publisher and {} readers need", list.back(), own.readers),
      static_cast<double>(list.back()) * (1 + bits * (own.keep + 1 + own.readers)),
      "give a smaller size (-b, -e), or fewer --readers", 1 + own.readers));
  Report report(options, fmt::format("gradrail bench publish: 1 publisher, {} readers, {} of the parameters change, {} "
                                     "versions are kept; tcp on this host",
                                     own.readers, own.changed, own.keep));
  report.note(
      "size: of the parameters in fp32. publish(): one copy. lag: from the begin of publish() to a version that a "
      "reader");
  report.note(
      "has verified, over all readers. 1 suspended: one reader is stopped by a signal; lags are those of the others");
  report.begin(Layout::latency);
  const auto measure = [&](uint64_t bytes) {
    const PublishScene scene{.format = format,
                             .bytes = bytes,
                             .readers = own.readers,
                             .changed = own.changed,
                             .keep = own.keep,
                             .versions = options.iterations,
                             .seconds = options.seconds};
    // Each wait has its own limit: this one is the last resort.
    return isolated_figures(own.weights, bytes, 10 * scene.reader_limit(), [&] { return measure_publishing(scene); });
  };
  take_turns(options, list, {{own.weights, measure}}, report);
  return report.finish(true);
}

}  // namespace

std::unique_ptr<Suite> new_publish_suite() { return std::make_unique<SuiteWith<PublishOptions>>(run_publish_suite); }

}  // namespace gradrail::bench
