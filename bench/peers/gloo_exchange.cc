// Exchange of trainers without a parameter server: gloo_exchange BYTES SECONDS TOUCH. The gradients of two processes
// are summed in both (allreduce), and each applies them.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "bench/driver/children.h"
#include "bench/driver/harness.h"
#include "bench/peers/peers.h"

namespace gradrail::bench {

class Rank {
 public:
  Rank(int rank, const std::string& folder, size_t count)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, 2)),
        parameters_(count),
        gradient_(count),
        sum_(count) {
    // A rank that has ended is noticed by its closed connection; this bounds all other waits.
    context_->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(exchange_limit(count * sizeof(float))));
    gloo::transport::tcp::attr address;
    address.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(address);
    // Both ranks find each other through files: gloo needs no server for this.
    gloo::rendezvous::FileStore store(folder);
    context_->connectFullMesh(store, device);
    write_gradient();
  }
  /// Halves of the gradient in each, so that the sum is what the other peers send.
  void write_gradient() { std::fill(gradient_.begin(), gradient_.end(), 0.5f); }
  void exchange() {
    gloo::AllreduceOptions options(context_);
    options.setInput(gradient_.data(), gradient_.size());
    options.setOutput(sum_.data(), sum_.size());
    // gloo::sum has overloads; the cast selects the one that gloo calls.
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
    apply_sgd(parameters_.data(), sum_.data(), sum_.size(), ++updates_);
  }
  uint64_t wrong() const { return count_wrong(parameters_.data(), parameters_.size(), updates_); }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> parameters_, gradient_, sum_;
  uint64_t updates_ = 0;
};

/// Runs the other rank: takes part until the first one has ended, for which gloo throws.
[[noreturn]] void follow(const std::string& folder, size_t count) {
  try {
    Rank rank(1, folder, count);
    while (true) rank.exchange();
  } catch (const std::exception&) {
    _exit(0);
  }
}

Figure run(const PeerLoad& load) {
  std::string folder = std::filesystem::temp_directory_path() / "gradrail-gloo-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return not_measured("", load.bytes, "no temporary folder");
  Figure figure;
  // The fork precedes any object of gloo: its threads would not be copied into the child.
  if (fork_child() == 0) follow(folder, load.bytes / sizeof(float));
  try {  // gloo reports it by an exception only
    Rank rank(0, folder, load.bytes / sizeof(float));
    rank.exchange();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);  // both are connected; a process killed from here on leaves nothing
    figure.times = measure(
        load.seconds,
        [&] {
          if (load.touch) rank.write_gradient();
        },
        [&] { rank.exchange(); });
    figure.wrong = rank.wrong();
  } catch (const std::exception& error) {
    figure.failed = error.what();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return figure;
}

}  // namespace gradrail::bench

int main(int count, char** values) {
  return gradrail::bench::run_peer_program(
      count, values, [](const auto& load, const std::string&) { return gradrail::bench::run(load); });
}
