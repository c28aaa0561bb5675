#include "worker/trainer/trainer.h"

#include <openssl/evp.h>

#include <chrono>
#include <ctime>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "worker/trainer/client_variables.h"

namespace gradrail::worker {
namespace {

/// The spans of variables in the form that a workload takes.
struct Views {
  explicit Views(Variables& variables) {
    for (size_t i = 0; i < variables.schema().size(); ++i) {
      writable.push_back(variables.parameters(i));
      parameters.push_back(variables.parameters(i));
      gradients.push_back(variables.gradients(i));
    }
  }
  std::vector<absl::Span<float>> writable;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

/// A device may hold on to the variables' memory: not beyond the run, since their owner may end before the model.
class MemoryLender {
 public:
  MemoryLender(Workload& workload, Variables& variables) : workload_(workload) {
    workload_.meanwhile([&variables] { variables.progress(); });
  }
  ~MemoryLender() {
    workload_.meanwhile(nullptr);
    workload_.release_memory();
  }
  MemoryLender(const MemoryLender&) = delete;
  MemoryLender& operator=(const MemoryLender&) = delete;

 private:
  Workload& workload_;
};

/// Current time in the format of Python's datetime.now().
std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return fmt::format("{}.{:06}", text, micros);
}

/// A worker's run.
class Run {
 public:
  Run(Variables& variables, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
      const std::atomic<bool>& stop)
      : variables_(variables),
        workload_(workload),
        options_(options),
        output_(output),
        stop_(stop),
        views_(variables),
        checkpoints_(variables, options.save_every) {}

  void begin();
  absl::Status all_epochs();
  absl::Status finish_run();
  void complete() { is_complete_ = !stop_.load(); }
  absl::Status leave();
  void end();
  absl::Status outcome(const absl::Status& ended) const;

 private:
  absl::Status step();
  absl::Status model_failed(const absl::Status& why);
  absl::Status pull_final();
  absl::Status pull_now();
  absl::Status save(const std::string& hash, bool unchanged);
  bool stopped_waiting(const absl::Status& status) const { return absl::IsCancelled(status) && stop_.load(); }
  std::string step_line(uint32_t epoch, size_t batch, double average_ms) const;
  void report(uint32_t epoch, size_t batch);
  void summary(double seconds);
  absl::Status evaluate();
  std::string state_text(const std::string& hash) const;
  void line(const std::string& text) const {
    if (output_.line) output_.line(text);
  }

  Variables& variables_;
  Workload& workload_;
  const TrainerOptions& options_;
  const TrainerOutput& output_;
  const std::atomic<bool>& stop_;
  Views views_;
  CheckpointSchedule checkpoints_;
  float cost_ = 0.0f;
  uint64_t steps_ = 0;
  uint64_t last_step_ = 0;  ///< global step; stored here, because a client that searches for a lost ps loses it
  uint64_t steps_since_line_ = 0;
  std::string saved_state_;    ///< state_text() of the last save; empty: none, or an unknown one
  bool pulled_final_ = false;  ///< set by a chief that was not stopped: the parameters have the updates of all workers
  bool has_model_failed_ = false;
  bool is_step_open_ = false;  ///< a stop has ended the wait for it; the servers have its gradient, or a part
  bool is_complete_ = false;   ///< the output is written, and no stop was requested until then
  TimePoint start_ = Clock::now();
  TimePoint line_start_ = start_;
};

/// Reports a failed model: a GPU was lost. The other workers need not wait for an expired heartbeat.
absl::Status Run::model_failed(const absl::Status& why) {
  has_model_failed_ = true;
  variables_.give_up(std::string(message_of(why))).IgnoreError();
  return absl::Status(why.code(),
                      fmt::format("the model failed after {} steps of this worker: {}", steps_, message_of(why)));
}

absl::Status Run::step() {
  const absl::StatusOr<float> cost =
      workload_.step(views_.parameters, views_.gradients, [this](size_t tensor) { variables_.ready(tensor); });
  if (!cost.ok()) return model_failed(cost.status());
  cost_ = *cost;
  // All of the gradient is sent from here on; the bucket of an early tensor may be under way already.
  variables_.exchange();
  workload_.prefetch();  // most likely the next batch: prepared while the exchange is under way
  if (const absl::Status waited = variables_.wait(); !waited.ok()) {
    return variables_.device_failed() ? model_failed(waited) : waited;
  }
  ++steps_;
  last_step_ = variables_.global_step();
  // The check runs in each step: another worker can become chief when the chief is lost.
  if (variables_.is_chief()) checkpoints_.after_step(steps_);
  return absl::OkStatus();
}

std::string Run::step_line(uint32_t epoch, size_t batch, double average_ms) const {
  if (options_.step_line == StepLine::kEpochs) {
    return fmt::format("Step: {},  Epoch: {:2},  Batch: {:3} of {:3},  Cost: {:.4f},  AvgTime: {:3.2f}ms",
                       variables_.global_step() + 1, epoch, batch, workload_.batches_per_epoch(), cost_, average_ms);
  }
  const double seconds = average_ms * 1e-3;
  return fmt::format("{}: step {}, loss = {:.2f} ({:.1f} examples/sec; {:.3f} sec/batch)", now_text(),
                     variables_.global_step(), cost_, static_cast<double>(workload_.batch_size()) / seconds,
                     seconds / static_cast<double>(options_.towers));
}

void Run::report(uint32_t epoch, size_t batch) {
  const size_t batches = workload_.batches_per_epoch();
  // The bar shows each step; the line below only every `log_every` steps.
  if (output_.progress) output_.progress({variables_.global_step(), epoch, options_.epochs, batch, batches, cost_});
  ++steps_since_line_;
  // A worker that skipped steps may never have a round number.
  if (batch % options_.log_every != 0 && batch != batches && steps_since_line_ < options_.log_every) return;
  const double average_ms = seconds_since(line_start_) * 1e3 / static_cast<double>(steps_since_line_);
  if (output_.line) output_.line(step_line(epoch, batch, average_ms));
  steps_since_line_ = 0;
  line_start_ = Clock::now();
}

/// Trains to the end of the run: a worker that joins late, or skips steps, does not repeat the steps of the others.
absl::Status Run::all_epochs() {
  start_ = line_start_ = Clock::now();
  const size_t batches = workload_.batches_per_epoch();
  while (variables_.position() < options_.epochs * batches) {
    if (stop_.load(std::memory_order_relaxed)) return absl::OkStatus();
    workload_.seek(variables_.position());
    const absl::Status done = step();
    // The other workers kept this step open for too long: the state of the run is saved nevertheless.
    is_step_open_ = stopped_waiting(done);
    if (is_step_open_) return absl::OkStatus();
    GRADRAIL_RETURN_IF_ERROR(done);
    // The position may have changed by more than one: a ps was lost, or the others continued without this worker.
    const uint64_t made = variables_.position();
    if (made > 0) report(static_cast<uint32_t>((made - 1) / batches) + 1, (made - 1) % batches + 1);
  }
  return absl::OkStatus();
}

void Run::begin() {
  if (options_.step_line == StepLine::kEpochs) line("Variables initialized ...");
}

/// Two equal texts: no update was applied between them.
std::string Run::state_text(const std::string& hash) const {
  return fmt::format("{} {}", variables_.global_step(), hash);
}

/// The last line of the tutorials. After a request to stop, the training is not done.
void Run::end() {
  if (options_.step_line == StepLine::kEpochs && !stop_.load()) line("done");
}

void Run::summary(double seconds) {
  const double examples = static_cast<double>(steps_ * workload_.batch_size());
  line(fmt::format("Examples/s: {:.0f}", seconds > 0 ? examples / seconds : 0.0));
  line(fmt::format("Global-Step: {}", variables_.global_step()));
  for (const std::string& text : variables_.summary(options_.verbose)) line(text);
  if (!output_.more) return;
  for (const std::string& text : output_.more()) line(text);
}

/// A request to stop ends the wait for other workers, and the last checkpoint is still to be saved.
absl::Status Run::pull_final() {
  absl::Status pulled = variables_.pull_final();
  pulled_final_ = pulled.ok();
  return stopped_waiting(pulled) ? absl::OkStatus() : pulled;
}

/// A stop while a parameter server is lost leaves no server that could save: the run is not complete, and no summary
/// can be trusted. A failure of the model, or an error after the end of the run, has another cause than the stop.
absl::Status Run::outcome(const absl::Status& ended) const {
  if (is_complete_ || has_model_failed_ || !stop_.load() || !absl::IsUnavailable(ended)) return ended;
  return absl::UnavailableError(
      fmt::format("stopped after {} steps of this worker; the run is unfinished, its last known global step is {}: {}",
                  steps_, last_step_, message_of(ended)));
}

absl::Status Run::evaluate() {
  const absl::StatusOr<Verdict> verdict = workload_.verdict(views_.parameters);
  if (!verdict.ok()) return model_failed(verdict.status());
  for (const std::string& text : verdict->lines) line(text);
  if (verdict->accuracy && output_.evaluated) output_.evaluated(variables_.global_step(), *verdict->accuracy);
  return absl::OkStatus();
}

absl::Status Run::finish_run() {
  const double seconds = seconds_since(start_);
  const bool stopped = stop_.load();
  if (stopped) {
    line(steps_ == 0 ? std::string("Stopped before the first step: nothing was trained")
                     : fmt::format("Stopped after {} steps of this worker", steps_));
  } else if (options_.step_line == StepLine::kRate) {
    line(fmt::format("Done training for {} epochs, {} steps.", options_.epochs, steps_));
  }
  bool is_chief = variables_.is_chief();
  if (is_chief && !stopped) {
    if (checkpoints_.has_saved(steps_)) {
      GRADRAIL_RETURN_IF_ERROR(variables_.fetch());
      saved_state_ = state_text(parameter_hash(variables_));
    }
    GRADRAIL_RETURN_IF_ERROR(pull_final());
  }
  GRADRAIL_RETURN_IF_ERROR(variables_.fetch());
  // This precedes the test of the model, which may take longer than the parameter servers stay after a request to stop.
  std::string hash;  // hash of a chief
  absl::Status saved;
  if (is_chief && stopped) {
    hash = parameter_hash(variables_);
    saved = save(hash, false);
  }
  // The test of the model takes time, and the next step would wait for this worker. An open step needs its gradient
  // beside those of the others: without this worker as a contributor, that gradient alone would complete the step.
  absl::Status finished;  // an error does not replace the summary
  if (stopped && !is_step_open_) finished = variables_.finish_steps();
  GRADRAIL_RETURN_IF_ERROR(evaluate());
  // The chief waits for all of us to leave: where it is another one by now, it was lost, and the last word is ours.
  if (!is_chief && !stopped && variables_.is_chief()) {
    is_chief = true;
    GRADRAIL_RETURN_IF_ERROR(pull_final());
    GRADRAIL_RETURN_IF_ERROR(variables_.fetch());
  }
  line(fmt::format("Total Time: {:3.2f}s", seconds));
  line(fmt::format("Final Cost: {:.4f}", cost_));
  summary(seconds);
  if (!is_chief) return finished;
  if (!stopped) hash = parameter_hash(variables_);
  line("Parameter-Hash: " + hash);
  if (stopped) return saved.ok() ? finished : saved;
  // Other workers may have made updates since the save of the last step.
  return save(hash, pulled_final_ && saved_state_ == state_text(hash));
}

/// `hash`: that of the parameters now.
absl::Status Run::save(const std::string& hash, bool unchanged) {
  saved_state_ = state_text(hash);
  return checkpoints_.at_end(unchanged);
}

/// Fetches the parameters now. Another worker may have ended the open step already, or was lost.
absl::Status Run::pull_now() {
  if (is_step_open_) GRADRAIL_RETURN_IF_ERROR(variables_.wait());
  return variables_.pull();
}

/// Workers that stop leave in any order, also while the chief saves: the last one saves what the checkpoint lacks.
absl::Status Run::leave() {
  if (pulled_final_) return variables_.leave();
  const absl::StatusOr<bool> left = variables_.leave_unless_last();
  if (!left.ok() || *left) return left.status();
  const absl::Status pulled = pull_now();
  if (!pulled.ok() && !stopped_waiting(pulled)) return pulled;
  GRADRAIL_RETURN_IF_ERROR(variables_.fetch());
  const std::string hash = parameter_hash(variables_);
  if (!pulled.ok() || saved_state_ != state_text(hash)) {
    line("Parameter-Hash: " + hash);
    GRADRAIL_RETURN_IF_ERROR(save(hash, false));
  }
  return variables_.leave();
}

}  // namespace

std::string parameter_hash(Client& client) {
  ClientVariables variables(client);
  return parameter_hash(variables);
}

std::string parameter_hash(Variables& variables) {
  // The hash covers the values in the order of the schema: equal models have equal hashes on any cluster.
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  GRADRAIL_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  for (size_t i = 0; i < variables.schema().size(); ++i) {
    const absl::Span<const float> values = variables.parameters(i);
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
  ClientVariables variables(client);
  return train(variables, workload, options, output, stop);
}

absl::Status train(Variables& variables, Workload& workload, const TrainerOptions& options, const TrainerOutput& output,
                   const std::atomic<bool>& stop) {
  // All have the same values ready: the chief at the time of the request gives them.
  workload.initialise(options.seed, Views(variables).writable);
  GRADRAIL_RETURN_IF_ERROR(variables.start());
  // Declared before the run: released after it, while the variables still exist.
  const MemoryLender lender(workload, variables);
  Run run(variables, workload, options, output, stop);
  run.begin();
  absl::Status ended = run.all_epochs();
  if (ended.ok()) ended = run.finish_run();
  if (ended.ok()) {
    run.complete();
    ended = run.leave();
  }
  if (ended.ok()) run.end();
  return run.outcome(ended);
}

}  // namespace gradrail::worker
