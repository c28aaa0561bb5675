// The same push + SGD + pull between two MPI ranks: mpi_exchange BYTES SECONDS TOUCH. Rank 0 is the worker and prints a
// line that bench/exchange reads.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/harness.h"
#include "ps/optimizer.h"

namespace {

constexpr int kGradient = 1, kParameters = 2, kEnd = 3;

void serve(int count) {
  std::vector<float> parameters(count, 0.0f), gradient(count);
  const float* gradients[] = {gradient.data()};
  uint64_t updates = 0;
  while (true) {
    MPI_Status status;
    MPI_Recv(gradient.data(), count, MPI_FLOAT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    if (status.MPI_TAG == kEnd) return;
    gradrail::ps::apply({.kind = gradrail::ps::OptimizerKind::sgd, .learning_rate = 1.0f},
                        {.count = static_cast<size_t>(count),
                         .parameters = parameters.data(),
                         .gradients = gradients,
                         .targets = {},
                         .update_index = ++updates});
    MPI_Send(parameters.data(), count, MPI_FLOAT, 0, kParameters, MPI_COMM_WORLD);
  }
}

void work(int count, double seconds, bool touch) {
  std::vector<float> parameters(count, 0.0f), gradient(count, 1.0f);
  uint64_t exchanges = 0;
  gradrail::bench::Sample sample = gradrail::bench::measure(
      seconds,
      [&] {
        if (touch) std::fill(gradient.begin(), gradient.end(), 1.0f);
      },
      [&] {
        MPI_Send(gradient.data(), count, MPI_FLOAT, 1, kGradient, MPI_COMM_WORLD);
        MPI_Recv(parameters.data(), count, MPI_FLOAT, 1, kParameters, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        ++exchanges;
      });
  MPI_Send(gradient.data(), 0, MPI_FLOAT, 1, kEnd, MPI_COMM_WORLD);
  for (const float value : parameters) sample.wrong += value != -static_cast<float>(exchanges) ? 1 : 0;
  std::printf("%s\n", gradrail::bench::to_line(sample).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  const int count = std::atoi(argv[1]) / static_cast<int>(sizeof(float));
  if (rank == 0) {
    work(count, std::atof(argv[2]), std::atoi(argv[3]) != 0);
  } else {
    serve(count);
  }
  MPI_Finalize();
  return 0;
}
