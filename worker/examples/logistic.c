/* The same logistic regression in C: one worker of a cluster.
 *
 *   logistic_c <ps hosts> <worker hosts> <task index> [sync|async] */
#include <gradrail/gradrail.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kFeatures = 8, kBatch = 64, kSteps = 300 };
static const float kGoodAccuracy = 0.97f;

/* Uniform in [-1, 1): splitmix64, so that every run and machine draws the same points. */
static float draw(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (float)((z ^ (z >> 31)) >> 40) / 8388608.0f - 1.0f;
}

/* Generates a point and its side of a hidden plane. */
static int next_point(uint64_t* state, float* x) {
  float side = 0.25f;
  for (int k = 0; k < kFeatures; ++k) {
    x[k] = 2.0f * draw(state);
    side += x[k] * (k % 2 == 0 ? 1.0f : -2.0f);
  }
  return side > 0;
}

static float probability(const float* w, float b, const float* x) {
  float sum = b;
  for (int k = 0; k < kFeatures; ++k) sum += w[k] * x[k];
  return 1.0f / (1.0f + expf(-sum));
}

static int failed(const char* what) {
  fprintf(stderr, "logistic_c: %s: %s\n", what, gradrail_last_error());
  return EXIT_FAILURE;
}

static void gradient(uint64_t* state, const float* w, const float* b, float* dw, float* db) {
  float x[kFeatures];
  memset(dw, 0, kFeatures * sizeof(float));
  *db = 0.0f;
  for (int i = 0; i < kBatch; ++i) {
    const int is_one = next_point(state, x);
    const float error = (probability(w, *b, x) - (float)is_one) / kBatch;
    for (int k = 0; k < kFeatures; ++k) dw[k] += error * x[k];
    *db += error;
  }
}

static float accuracy(const float* w, float b) {
  uint64_t unseen = 1000000;
  float x[kFeatures];
  int right = 0;
  for (int i = 0; i < 2000; ++i) {
    const int is_one = next_point(&unseen, x);
    right += is_one == (probability(w, b, x) > 0.5f);
  }
  return (float)right / 2000.0f;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: logistic_c <ps hosts> <worker hosts> <task index> [sync|async]\n");
    return EXIT_FAILURE;
  }
  gradrail_options options = GRADRAIL_OPTIONS_INIT;
  options.ps_hosts = argv[1];
  options.worker_hosts = argv[2];
  options.task_index = (uint32_t)atoi(argv[3]);
  options.mode = argc > 4 ? argv[4] : "async";
  options.learning_rate = 0.5f;

  const int64_t w_shape[] = {kFeatures};
  const int64_t b_shape[] = {1};
  const gradrail_tensor tensors[] = {{"w", w_shape, 1}, {"b", b_shape, 1}};
  gradrail_client* client = NULL;
  if (gradrail_join(&options, tensors, 2, &client) != GRADRAIL_OK) return failed("join");
  if (gradrail_start(client) != GRADRAIL_OK) return failed("start");
  const float* w = gradrail_parameters(client, 0, NULL);
  const float* b = gradrail_parameters(client, 1, NULL);
  float* dw = gradrail_gradients(client, 0, NULL);
  float* db = gradrail_gradients(client, 1, NULL);

  uint64_t state = options.task_index + 1;
  for (int step = 0; step < kSteps; ++step) {
    gradient(&state, w, b, dw, db);
    gradrail_exchange(client);
    if (gradrail_wait(client) != GRADRAIL_OK) return failed("wait");
  }
  if (gradrail_barrier(client, "trained") != GRADRAIL_OK) return failed("barrier");
  if (gradrail_pull(client) != GRADRAIL_OK) return failed("pull");
  const float share = accuracy(w, *b);
  printf("worker %u: accuracy %.4f after %llu updates\n", (unsigned)options.task_index, (double)share,
         (unsigned long long)gradrail_global_step(client));
  gradrail_leave(client);
  gradrail_free(client);
  return share >= kGoodAccuracy ? EXIT_SUCCESS : EXIT_FAILURE;
}
