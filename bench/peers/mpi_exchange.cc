// The same push + SGD + pull between two MPI ranks: mpi_exchange BYTES SECONDS TOUCH. Rank 0 is the worker and prints a
// line that `gradrail bench peers` reads.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/harness.h"
#include "bench/peers.h"
#include "nlohmann/json.hpp"

namespace {

constexpr int kGradient = 1, kParameters = 2, kEnd = 3;

void serve(int count) {
  std::vector<float> parameters(count, 0.0f), gradient(count);
  uint64_t updates = 0;
  while (true) {
    MPI_Status status;
    MPI_Recv(gradient.data(), count, MPI_FLOAT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    if (status.MPI_TAG == kEnd) return;
    gradrail::bench::apply_sgd(parameters.data(), gradient.data(), static_cast<size_t>(count), ++updates);
    MPI_Send(parameters.data(), count, MPI_FLOAT, 0, kParameters, MPI_COMM_WORLD);
  }
}

void work(int count, double seconds, bool touch) {
  std::vector<float> parameters(count, 0.0f), gradient(count, 1.0f);
  uint64_t exchanges = 0;
  gradrail::bench::Figure figure;
  figure.times = gradrail::bench::measure(
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
  figure.wrong = gradrail::bench::count_wrong(parameters.data(), parameters.size(), exchanges);
  std::printf("%s\n", gradrail::bench::to_json(figure).dump().c_str());
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
