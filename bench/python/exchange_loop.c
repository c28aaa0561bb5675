/* The exchange loops of compare_python.py in C. The file is compiled twice. As a shared library for the Python
 * process it has gradrail_bench_steps() and gradrail_bench_halves(). As a program it is a worker of `gradrail run`, and
 * prints the seconds of an exchange of each block:
 *
 *   exchange_loop <gradient bytes> <exchanges of a block> <blocks> */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gradrail/gradrail.h"

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Return the mean seconds of an exchange, or a negative number: gradrail_last_error() has the reason. */
GRADRAIL_API double gradrail_bench_steps(gradrail_client* client, uint64_t exchanges) {
  const double begin = seconds_now();
  for (uint64_t i = 0; i < exchanges; ++i)
    if (gradrail_step(client) != GRADRAIL_OK) return -1.0;
  return (seconds_now() - begin) / (double)exchanges;
}

GRADRAIL_API double gradrail_bench_halves(gradrail_client* client, uint64_t exchanges) {
  const double begin = seconds_now();
  for (uint64_t i = 0; i < exchanges; ++i)
    if (gradrail_exchange(client) != GRADRAIL_OK || gradrail_wait(client) != GRADRAIL_OK) return -1.0;
  return (seconds_now() - begin) / (double)exchanges;
}

static int failed(const char* call) {
  fprintf(stderr, "exchange_loop: %s: %s\n", call, gradrail_last_error());
  return EXIT_FAILURE;
}

static uint64_t number(const char* text) {
  char* end = NULL;
  const uint64_t value = strtoull(text, &end, 10);
  return *end == '\0' ? value : 0;
}

int main(int argc, char** argv) {
  const uint64_t bytes = argc == 4 ? number(argv[1]) : 0;
  const uint64_t exchanges = argc == 4 ? number(argv[2]) : 0;
  const uint64_t blocks = argc == 4 ? number(argv[3]) : 0;
  if (bytes < sizeof(float) || exchanges == 0 || blocks == 0) {
    fprintf(stderr, "usage: exchange_loop <gradient bytes> <exchanges of a block> <blocks>\n");
    return EXIT_FAILURE;
  }
  gradrail_options options = GRADRAIL_OPTIONS_INIT; /* the environment sets the cluster */
  options.mode = "sync";
  options.learning_rate = 1.0f;
  const int64_t shape[] = {(int64_t)(bytes / sizeof(float))};
  const gradrail_tensor tensors[] = {{"gradient", shape, 1}};
  gradrail_client* client = NULL;
  if (gradrail_join(&options, tensors, 1, &client) != GRADRAIL_OK) return failed("join");
  if (gradrail_start(client) != GRADRAIL_OK) return failed("start");
  size_t elements = 0;
  float* gradient = gradrail_gradients(client, 0, &elements);
  for (size_t i = 0; i < elements; ++i) gradient[i] = 1.0f;
  if (gradrail_bench_steps(client, exchanges) < 0) return failed("warm-up");
  for (uint64_t i = 0; i < blocks; ++i) {
    const double seconds = gradrail_bench_steps(client, exchanges);
    if (seconds < 0) return failed("exchange");
    printf("block %.9f\n", seconds);
  }
  /* Each parameter is, with rate 1 and gradient 1, minus the number of updates: exact in fp32 for this many. */
  const float wanted = -(float)((blocks + 1) * exchanges);
  const float* parameters = gradrail_parameters(client, 0, NULL);
  uint64_t wrong = 0;
  for (size_t i = 0; i < elements; ++i) wrong += parameters[i] != wanted;
  printf("wrong %" PRIu64 "\n", wrong);
  const int left = gradrail_leave(client) == GRADRAIL_OK;
  if (!left) failed("leave");
  gradrail_free(client);
  return left && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
