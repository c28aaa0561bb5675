#include "tests/worker/client/c_program.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "gradrail/gradrail.h"

#define EXPECT(condition)                                                                                  \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      snprintf(failure, sizeof(failure), "line %d: %s (%s)", __LINE__, #condition, gradrail_last_error()); \
      return failure;                                                                                      \
    }                                                                                                      \
  } while (0)

static _Thread_local char failure[512];

static const int64_t matrix_shape[] = {3, 4};
static const int64_t vector_shape[] = {5};
static const gradrail_tensor tensors[] = {{"m", matrix_shape, 2}, {"v", vector_shape, 1}};

static gradrail_options local_options(const char* ps_hosts, const char* worker_hosts, uint32_t task_index) {
  gradrail_options options = GRADRAIL_OPTIONS_INIT;
  options.ps_hosts = ps_hosts;
  options.worker_hosts = worker_hosts;
  options.task_index = task_index;
  options.learning_rate = 1.0f;
  options.bucket_bytes = 64;
  options.join_timeout_s = 1.0;
  return options;
}

const char* c_program_trains(const char* ps_hosts, const char* worker_hosts, uint32_t task_index) {
  gradrail_options options = local_options(ps_hosts, worker_hosts, task_index);
  options.mode = "sync";
  gradrail_client* client = NULL;
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_OK);
  size_t elements = 0;
  float* m = gradrail_parameters(client, 0, &elements);
  EXPECT(m != NULL && elements == 12);
  float* v = gradrail_parameters(client, 1, &elements);
  EXPECT(v != NULL && elements == 5);
  if (task_index == 0) {
    for (int i = 0; i < 12; ++i) m[i] = 100.0f;
    for (int i = 0; i < 5; ++i) v[i] = -7.0f;
  }
  EXPECT(gradrail_start(client) == GRADRAIL_OK);
  EXPECT(m[11] == 100.0f && v[4] == -7.0f);
  EXPECT(gradrail_gradients(client, 0, NULL)[11] == 0.0f && gradrail_gradients(client, 1, NULL)[4] == 0.0f);
  for (int step = 1; step <= 4; ++step) {
    float* gradient = gradrail_gradients(client, 0, NULL);
    for (int i = 0; i < 12; ++i) gradient[i] = (float)(i + 1);
    gradient = gradrail_gradients(client, 1, NULL);
    for (int i = 0; i < 5; ++i) gradient[i] = task_index == 0 ? 2.0f : 4.0f;
    if (step % 2 == 0) EXPECT(gradrail_ready(client, 1) == GRADRAIL_OK);
    if (step > 2) {
      EXPECT(gradrail_step(client) == GRADRAIL_OK);
    } else {
      EXPECT(gradrail_exchange(client) == GRADRAIL_OK);
      EXPECT(gradrail_wait(client) == GRADRAIL_OK);
    }
    EXPECT(gradrail_global_step(client) == (uint64_t)step);
  }
  for (int i = 0; i < 12; ++i) EXPECT(m[i] == 100.0f - 4.0f * (float)(i + 1));
  for (int i = 0; i < 5; ++i) EXPECT(v[i] == -7.0f - 4.0f * 3.0f);
  EXPECT(gradrail_barrier(client, NULL) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_barrier(client, "done") == GRADRAIL_OK);
  EXPECT(gradrail_pull(client) == GRADRAIL_OK);
  EXPECT(gradrail_leave(client) == GRADRAIL_OK);
  gradrail_free(client);
  return NULL;
}

const char* c_program_is_refused(const char* ps_hosts, const char* worker_hosts) {
  gradrail_options options = local_options(ps_hosts, worker_hosts, 0);
  gradrail_client* first = NULL;
  EXPECT(gradrail_join(&options, tensors, 2, &first) == GRADRAIL_OK);
  gradrail_client* second = first;
  EXPECT(gradrail_join(&options, tensors, 2, &second) == GRADRAIL_ALREADY_EXISTS);
  EXPECT(second == NULL);
  EXPECT(strstr(gradrail_last_error(), "task_index") != NULL);
  options.task_index = 1;
  EXPECT(gradrail_join(&options, tensors, 1, &second) == GRADRAIL_FAILED_PRECONDITION);
  options.ps_hosts = "127.0.0.1:9";
  EXPECT(gradrail_join(&options, tensors, 2, &second) == GRADRAIL_DEADLINE_EXCEEDED);
  gradrail_free(first);
  return NULL;
}

const char* c_program_saves(const char* ps_hosts, const char* worker_hosts) {
  gradrail_options options = local_options(ps_hosts, worker_hosts, 0);
  gradrail_client* client = NULL;
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_OK);
  EXPECT(gradrail_start(client) == GRADRAIL_OK);
  EXPECT(gradrail_exchange(client) == GRADRAIL_OK);
  EXPECT(gradrail_wait(client) == GRADRAIL_OK);
  EXPECT(gradrail_save_checkpoint(client) == GRADRAIL_OK);
  gradrail_free(client);
  return NULL;
}

static int polls_until_stop;
static int poll_count;

static int stop_at_last_poll(void* context) {
  (void)context;
  return ++poll_count >= polls_until_stop;
}

const char* c_program_is_interrupted(const char* ps_hosts, const char* worker_hosts) {
  gradrail_options options = local_options(ps_hosts, worker_hosts, 0);
  options.mode = "sync";
  options.interrupted = stop_at_last_poll;
  polls_until_stop = 1000000;
  gradrail_client* client = NULL;
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_OK);
  EXPECT(gradrail_start(client) == GRADRAIL_OK);
  poll_count = 0;
  polls_until_stop = 2;
  /* The other worker never sends its gradient. */
  EXPECT(gradrail_step(client) == GRADRAIL_CANCELLED);
  EXPECT(poll_count == 2);
  EXPECT(gradrail_wait(client) == GRADRAIL_CANCELLED);
  EXPECT(gradrail_barrier(client, "both") == GRADRAIL_CANCELLED);
  gradrail_free(client);
  EXPECT(poll_count == 2);
  return NULL;
}

/* The library reads struct_bytes bytes, and takes the defaults for the members behind them. */
const char* c_program_has_a_short_struct(const char* ps_hosts, const char* worker_hosts) {
  gradrail_client* client = NULL;
  gradrail_options options = local_options(ps_hosts, worker_hosts, 0);
  options.push = "no format";
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "push format 'no format'") != NULL);
  options.push = "bf16";
  options.returns = "no format";
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "return format 'no format'") != NULL);
  options.push = "no format";
  options.struct_bytes = offsetof(gradrail_options, push);
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_OK);
  gradrail_free(client);
  return NULL;
}

const char* c_program_makes_mistakes(const char* ps_hosts, const char* worker_hosts) {
  gradrail_client* client = NULL;
  gradrail_options options = local_options(ps_hosts, worker_hosts, 0);
  EXPECT(gradrail_join(NULL, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_join(&options, NULL, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_join(&options, tensors, 2, NULL) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_join(&options, tensors, 0, &client) == GRADRAIL_INVALID_ARGUMENT);
  options.struct_bytes = 8;
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "GRADRAIL_OPTIONS_INIT") != NULL);
  options = local_options(ps_hosts, worker_hosts, 0);
  options.mode = "sometimes";
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  options = local_options(ps_hosts, worker_hosts, 0);
  options.transports = "pigeon";
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "transports: ") == gradrail_last_error());
  options = local_options("", worker_hosts, 0);
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "ps_hosts/worker_hosts: ") == gradrail_last_error());
  options = local_options(NULL, worker_hosts, 0);
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "GRADRAIL_PS_HOSTS") != NULL);
  options = local_options(ps_hosts, worker_hosts, 100000);
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  const float no_rates[] = {NAN, -1.0f, INFINITY};
  for (int i = 0; i < 3; ++i) {
    options = local_options(ps_hosts, worker_hosts, 0);
    options.learning_rate = no_rates[i];
    EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
    EXPECT(strstr(gradrail_last_error(), "learning_rate ") == gradrail_last_error());
  }
  const double no_timeouts[] = {NAN, -1.0, INFINITY, 1e300};
  for (int i = 0; i < 4; ++i) {
    options = local_options(ps_hosts, worker_hosts, 0);
    options.join_timeout_s = no_timeouts[i];
    EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
    EXPECT(strstr(gradrail_last_error(), "join_timeout_s ") == gradrail_last_error());
  }
  options = local_options(ps_hosts, worker_hosts, 0);
  options.bucket_bytes = 65;
  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "bucket_bytes 65") != NULL);
  const gradrail_tensor latin1[] = {{"m", matrix_shape, 2},
                                    {"gr\xf6\xdf"
                                     "e",
                                     vector_shape, 1}};
  options = local_options(ps_hosts, worker_hosts, 0);
  EXPECT(gradrail_join(&options, latin1, 2, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "tensor 1: its name is not UTF-8") != NULL);
  const gradrail_tensor nameless[] = {{NULL, vector_shape, 1}};
  options = local_options(ps_hosts, worker_hosts, 0);
  EXPECT(gradrail_join(&options, nameless, 1, &client) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(client == NULL);

  EXPECT(gradrail_join(&options, tensors, 2, &client) == GRADRAIL_OK);
  EXPECT(gradrail_parameters(client, 2, NULL) == NULL);
  EXPECT(gradrail_gradients(client, 2, NULL) == NULL);
  EXPECT(gradrail_ready(client, 2) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(strstr(gradrail_last_error(), "tensors 0 to 1") != NULL);
  EXPECT(gradrail_exchange(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_step(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "gradrail_step before gradrail_start") != NULL);
  EXPECT(gradrail_start(client) == GRADRAIL_OK);
  EXPECT(gradrail_start(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_ready(client, 1) == GRADRAIL_OK);
  EXPECT(gradrail_ready(client, 1) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "tensor 1 was ready before") != NULL);
  EXPECT(gradrail_wait(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "only 1 of 2 tensors are ready") != NULL);
  EXPECT(gradrail_exchange(client) == GRADRAIL_OK);
  EXPECT(gradrail_exchange(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_step(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "gradrail_step before gradrail_wait") != NULL);
  EXPECT(gradrail_ready(client, 0) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_pull(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_wait(client) == GRADRAIL_OK);
  EXPECT(gradrail_ready(client, 1) == GRADRAIL_OK); /* mistakes have cost nothing */
  EXPECT(gradrail_step(client) == GRADRAIL_OK);
  EXPECT(gradrail_step(client) == GRADRAIL_OK);
  EXPECT(gradrail_global_step(client) == 3);
  EXPECT(gradrail_save_checkpoint(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "--checkpoint_dir") != NULL);
  EXPECT(gradrail_leave(client) == GRADRAIL_OK);
  EXPECT(gradrail_leave(client) == GRADRAIL_OK);
  EXPECT(gradrail_exchange(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(gradrail_wait(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "after gradrail_leave") != NULL);
  EXPECT(gradrail_step(client) == GRADRAIL_FAILED_PRECONDITION);
  EXPECT(strstr(gradrail_last_error(), "gradrail_step after gradrail_leave") != NULL);
  gradrail_free(client);
  EXPECT(gradrail_start(NULL) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_step(NULL) == GRADRAIL_INVALID_ARGUMENT);
  EXPECT(gradrail_parameters(NULL, 0, NULL) == NULL);
  gradrail_free(NULL);
  return NULL;
}
