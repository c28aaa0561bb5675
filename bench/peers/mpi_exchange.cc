// The exchange of MPI programs, two ranks: mpi_exchange BYTES SECONDS TOUCH send|put|allreduce. Rank 0 is the worker
// and prints a line that `gradrail bench peers` reads.
//   send       the gradient as a message, SGD, the parameters as a message
//   put        one-sided: gradient into the server's window, a notice, SGD, parameters into the worker's, a notice
//   allreduce  no server: the gradients of both are summed in both, and each applies them
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/driver/harness.h"
#include "bench/peers/peers.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

// Tags. The server receives with any tag, and one of them ends it.
constexpr int kGradient = 1, kParameters = 2, kEnd = 3;
constexpr int kWorker = 0, kServer = 1;

/// One of the two ranks.
class Rank {
 public:
  explicit Rank(int count) : count_(count) {}
  virtual ~Rank() = default;
  virtual void write_gradient() = 0;
  /// The worker's: one exchange.
  virtual void exchange() = 0;
  /// The server's part of it; false: the worker has ended.
  virtual bool answer() = 0;
  virtual void end() { MPI_Send(nullptr, 0, MPI_FLOAT, kServer, kEnd, MPI_COMM_WORLD); }
  virtual const float* parameters() const = 0;

 protected:
  static bool hear(void* data, int count, int from) {
    MPI_Status status;
    MPI_Recv(data, count, MPI_FLOAT, from, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    return status.MPI_TAG != kEnd;
  }

  const int count_;
  uint64_t updates_ = 0;
};

class SendRank final : public Rank {
 public:
  explicit SendRank(int count) : Rank(count), parameters_(count), gradient_(count, 1.0f) {}

  void write_gradient() override { std::fill(gradient_.begin(), gradient_.end(), 1.0f); }
  void exchange() override {
    MPI_Send(gradient_.data(), count_, MPI_FLOAT, kServer, kGradient, MPI_COMM_WORLD);
    hear(parameters_.data(), count_, kServer);
  }
  bool answer() override {
    if (!hear(gradient_.data(), count_, kWorker)) return false;
    apply_sgd(parameters_.data(), gradient_.data(), static_cast<size_t>(count_), ++updates_);
    MPI_Send(parameters_.data(), count_, MPI_FLOAT, kWorker, kParameters, MPI_COMM_WORLD);
    return true;
  }
  const float* parameters() const override { return parameters_.data(); }

 private:
  std::vector<float> parameters_, gradient_;
};

/// The worker's window takes parameters, the server's gradients.
class PutRank final : public Rank {
 public:
  PutRank(int count, bool is_worker) : Rank(count), is_worker_(is_worker), source_(count, is_worker ? 1.0f : 0.0f) {
    const MPI_Aint bytes = static_cast<MPI_Aint>(count) * static_cast<MPI_Aint>(sizeof(float));
    MPI_Win_allocate(bytes, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &arrived_, &window_);
    std::fill_n(arrived_, count, 0.0f);
    // One epoch of passive access covers the whole run: a lock for each put would be timed.
    MPI_Win_lock_all(0, window_);
    // No put may arrive before the window is filled with zeros.
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~PutRank() override {
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
  }

  void write_gradient() override { std::fill(source_.begin(), source_.end(), 1.0f); }
  void exchange() override {
    put(kServer, kGradient);
    hear(nullptr, 0, kServer);
    // Makes the bytes of the other rank's put visible to loads of this process.
    MPI_Win_sync(window_);
  }
  bool answer() override {
    if (!hear(nullptr, 0, kWorker)) return false;
    MPI_Win_sync(window_);
    apply_sgd(source_.data(), arrived_, static_cast<size_t>(count_), ++updates_);
    put(kWorker, kParameters);
    return true;
  }
  const float* parameters() const override { return is_worker_ ? arrived_ : source_.data(); }

 private:
  void put(int target, int notice) {
    MPI_Put(source_.data(), count_, MPI_FLOAT, target, 0, count_, MPI_FLOAT, window_);
    MPI_Win_flush(target, window_);  // complete before the notice
    MPI_Send(nullptr, 0, MPI_FLOAT, target, notice, MPI_COMM_WORLD);
  }

  const bool is_worker_;
  std::vector<float> source_;  ///< the worker's gradient, the server's parameters
  float* arrived_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
};

/// A rank that holds half of the gradient, so the sum equals the data of the other ways; the last number decides
/// whether to continue.
class AllreduceRank final : public Rank {
 public:
  explicit AllreduceRank(int count) : Rank(count), parameters_(count), gradient_(count + 1, 0.5f), sum_(count + 1) {
    gradient_.back() = 0.0f;
  }

  void write_gradient() override { std::fill_n(gradient_.begin(), count_, 0.5f); }
  void exchange() override { answer(); }
  bool answer() override {
    // The end travels in the same message: a second one would be timed.
    MPI_Allreduce(gradient_.data(), sum_.data(), count_ + 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (sum_.back() != 0.0f) return false;
    apply_sgd(parameters_.data(), sum_.data(), static_cast<size_t>(count_), ++updates_);
    return true;
  }
  void end() override {
    gradient_.back() = 1.0f;
    answer();
  }
  const float* parameters() const override { return parameters_.data(); }

 private:
  std::vector<float> parameters_, gradient_, sum_;
};

std::unique_ptr<Rank> make_rank(const std::string& way, int count, bool is_worker) {
  if (way == "send") return std::make_unique<SendRank>(count);
  if (way == "put") return std::make_unique<PutRank>(count, is_worker);
  if (way == "allreduce") return std::make_unique<AllreduceRank>(count);
  return nullptr;
}

void work(Rank& rank, const PeerLoad& load) {
  uint64_t exchanges = 0;
  Figure figure;
  figure.times = measure(
      load.seconds,
      [&] {
        if (load.touch) rank.write_gradient();
      },
      [&] {
        rank.exchange();
        ++exchanges;
      });
  // The call follows the measurement: the server leaves its loop, and both reach MPI_Finalize().
  rank.end();
  figure.wrong = count_wrong(rank.parameters(), load.bytes / sizeof(float), exchanges);
  std::printf("%s\n", to_json(figure).dump().c_str());
}

}  // namespace
}  // namespace gradrail::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int index = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &index);
  const auto load = argc == 5 ? gradrail::bench::peer_load_from(argc, argv) : std::nullopt;
  const int count = load ? static_cast<int>(load->bytes / sizeof(float)) : 0;
  const bool is_worker = index == gradrail::bench::kWorker;
  auto rank = count > 0 ? gradrail::bench::make_rank(argv[4], count, is_worker) : nullptr;
  // All ranks end: one that returned alone would leave the other in a barrier.
  if (rank == nullptr) MPI_Abort(MPI_COMM_WORLD, 2);
  if (is_worker) {
    gradrail::bench::work(*rank, *load);
  } else {
    while (rank->answer()) {
    }
  }
  rank.reset();  // windows are MPI's
  MPI_Finalize();
  return 0;
}
