#include "worker/trainer.h"

#include <openssl/evp.h>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "spdlog/spdlog.h"

namespace gradrail::worker {
namespace {

/// Workers are started together; one that has not joined when the chief is done may be a slow starter or never come:
/// starting takes one second.
constexpr auto kPatienceForAbsent = std::chrono::seconds(10);

/// The spans of a client as a workload wants them.
struct Views {
  explicit Views(Client& client) {
    for (size_t i = 0; i < client.schema().size(); ++i) {
      writable.push_back(client.parameters(i));
      parameters.push_back(client.parameters(i));
      gradients.push_back(client.gradients(i));
    }
  }
  std::vector<absl::Span<float>> writable;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

/// One worker's run.
class Run {
 public:
  Run(Client& client, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
      const std::atomic<bool>& stop)
      : client_(client), workload_(workload), options_(options), output_(output), stop_(stop), views_(client) {}

  absl::Status all_epochs();
  absl::Status last_words();

 private:
  absl::Status step();
  void report(uint32_t epoch, size_t batch);
  absl::Status save();
  void summary(double seconds);
  bool is_chief() const { return options_.task_index == 0; }

  Client& client_;
  Workload& workload_;
  const TrainerOptions& options_;
  const TrainerOutput& output_;
  const std::atomic<bool>& stop_;
  Views views_;
  float cost_ = 0.0f;
  uint64_t steps_ = 0;
  uint64_t steps_since_line_ = 0;
  TimePoint start_ = Clock::now();
  TimePoint line_start_ = start_;
};

absl::Status Run::step() {
  cost_ = workload_.step(views_.parameters, views_.gradients, [this](size_t tensor) { client_.ready(tensor); });
  client_.exchange();
  workload_.prefetch();  // the next batch is prepared while the exchange is under way
  GRADRAIL_RETURN_IF_ERROR(client_.wait());
  ++steps_;
  if (is_chief() && options_.save_every_steps > 0 && client_.saves_checkpoints() &&
      steps_ % options_.save_every_steps == 0)
    return save();
  return absl::OkStatus();
}

void Run::report(uint32_t epoch, size_t batch) {
  const size_t batches = workload_.batches_per_epoch();
  if (output_.progress) output_.progress({client_.global_step(), epoch, options_.epochs, batch, batches, cost_});
  ++steps_since_line_;
  if (batch % options_.log_every != 0 && batch != batches) return;
  const double average_ms = seconds_since(line_start_) * 1e3 / static_cast<double>(steps_since_line_);
  if (output_.line) {
    output_.line(fmt::format("Step: {},  Epoch: {:2},  Batch: {:3} of {:3},  Cost: {:.4f},  AvgTime: {:3.2f}ms",
                             client_.global_step() + 1, epoch, batch, batches, cost_, average_ms));
  }
  steps_since_line_ = 0;
  line_start_ = Clock::now();
}

absl::Status Run::all_epochs() {
  start_ = line_start_ = Clock::now();
  for (uint32_t epoch = 1; epoch <= options_.epochs; ++epoch) {
    for (size_t batch = 1; batch <= workload_.batches_per_epoch(); ++batch) {
      if (stop_.load(std::memory_order_relaxed)) return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(step());
      report(epoch, batch);
    }
  }
  return absl::OkStatus();
}

absl::Status Run::save() {
  const absl::StatusOr<std::vector<std::string>> files = client_.save_checkpoint();
  if (!files.ok()) return files.status();
  spdlog::info("saved {}", fmt::join(*files, ", "));
  return absl::OkStatus();
}

void Run::summary(double seconds) {
  const auto line = [&](const std::string& text) {
    if (output_.line) output_.line(text);
  };
  const ClientStats stats = client_.stats();
  const double examples = static_cast<double>(steps_ * workload_.batch_size());
  line(fmt::format("Examples/s: {:.0f}", seconds > 0 ? examples / seconds : 0.0));
  line(fmt::format("Global-Step: {}", client_.global_step()));
  line(fmt::format("Exchange: {} exchanges, p50 {:.1f}us, p99 {:.1f}us, {} bytes pushed, {} bytes returned",
                   stats.exchange_count, static_cast<double>(stats.exchange.quantile_ns(0.5)) * 1e-3,
                   static_cast<double>(stats.exchange.quantile_ns(0.99)) * 1e-3, stats.bytes_pushed,
                   stats.bytes_returned));
  if (stats.exchange_count > 0) {
    line(fmt::format("Staleness: mean {:.2f}, max {} updates",
                     static_cast<double>(stats.staleness_sum) / static_cast<double>(stats.exchange_count),
                     stats.staleness_max));
  }
  for (const std::string& path : stats.paths) line(fmt::format("Path: {}", path));
  // One path's bytes are those of the line above.
  for (const ClientStats::PathBytes& bytes : stats.path_bytes) {
    if (stats.path_bytes.size() > 1) {
      line(fmt::format("Bytes: {}: {} pushed, {} returned", bytes.path, bytes.pushed, bytes.returned));
    }
  }
  if (options_.verbose) line(fmt::format("Registered: {}", stats.registered.text()));
  if (stats.moves > 0) {
    line(fmt::format("Moves: {} paths were lost and replaced, {} times back to a better one", stats.moves,
                     stats.returns));
  }
  if (!output_.more) return;
  for (const std::string& text : output_.more()) line(text);
}

absl::Status Run::last_words() {
  const double seconds = seconds_since(start_);
  const bool stopped = stop_.load();
  if (stopped && output_.line) {
    output_.line(steps_ == 0 ? std::string("Stopped before the first step: nothing was trained")
                             : fmt::format("Stopped after {} steps of this worker", steps_));
  }
  if (is_chief() && !stopped) {
    // The final parameters are those after the last update of anybody.
    GRADRAIL_RETURN_IF_ERROR(client_.barrier_of_the_living("training done", kPatienceForAbsent));
    GRADRAIL_RETURN_IF_ERROR(client_.pull());
  }
  for (const std::string& text : workload_.verdict(views_.parameters)) {
    if (output_.line) output_.line(text);
  }
  if (output_.line) {
    output_.line(fmt::format("Total Time: {:3.2f}s", seconds));
    output_.line(fmt::format("Final Cost: {:.4f}", cost_));
  }
  summary(seconds);
  if (is_chief() && output_.line) output_.line("Parameter-Hash: " + parameter_hash(client_));
  if (is_chief() && client_.saves_checkpoints()) GRADRAIL_RETURN_IF_ERROR(save());
  return absl::OkStatus();
}

}  // namespace

std::string parameter_hash(Client& client) {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  GRADRAIL_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  for (size_t i = 0; i < client.schema().size(); ++i) {
    const absl::Span<const float> values = client.parameters(i);
    GRADRAIL_CHECK(EVP_DigestUpdate(context, values.data(), values.size() * sizeof(float)) == 1);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  GRADRAIL_CHECK(EVP_DigestFinal_ex(context, digest, &length) == 1);
  EVP_MD_CTX_free(context);
  return fmt::format("{:02x}", fmt::join(digest, digest + length, ""));
}

absl::Status train(Client& client, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
                   const std::atomic<bool>& stop) {
  if (options.task_index == 0) {
    Views views(client);
    workload.initialise(options.seed, views.writable);
  }
  GRADRAIL_RETURN_IF_ERROR(client.start());
  Run run(client, workload, options, output, stop);
  GRADRAIL_RETURN_IF_ERROR(run.all_epochs());
  GRADRAIL_RETURN_IF_ERROR(run.last_words());
  return client.leave();
}

}  // namespace gradrail::worker
