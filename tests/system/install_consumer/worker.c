/* The worker of worker.cc in C. Usage: worker_c PS_HOSTS WORKER_HOSTS TASK_INDEX VERSION */
#include <gradrail/gradrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* call) {
  fprintf(stderr, "worker.c: %s: %s\n", call, gradrail_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  if (strcmp(gradrail_version(), argv[4]) != 0) return 3;
  gradrail_options options = GRADRAIL_OPTIONS_INIT;
  options.ps_hosts = argv[1];
  options.worker_hosts = argv[2];
  options.task_index = (uint32_t)atoi(argv[3]);
  options.mode = "sync";
  options.learning_rate = 1.0f;
  options.join_timeout_s = 60.0;
  const int64_t shape[] = {4};
  const gradrail_tensor tensor = {"w", shape, 1};
  gradrail_client* client = NULL;
  if (gradrail_join(&options, &tensor, 1, &client) != GRADRAIL_OK) return failed("gradrail_join");
  size_t elements = 0;
  float* parameters = gradrail_parameters(client, 0, &elements);
  float* gradients = gradrail_gradients(client, 0, NULL);
  for (size_t i = 0; i < elements; ++i) parameters[i] = 10.0f;
  if (gradrail_start(client) != GRADRAIL_OK) return failed("gradrail_start");
  for (size_t i = 0; i < elements; ++i) gradients[i] = (float)(options.task_index + 1);
  if (gradrail_exchange(client) != GRADRAIL_OK) return failed("gradrail_exchange");
  if (gradrail_wait(client) != GRADRAIL_OK) return failed("gradrail_wait");
  for (size_t i = 0; i < elements; ++i) {
    if (parameters[i] != 7.5f) return fprintf(stderr, "worker.c: parameter %g instead of 7.5\n", parameters[i]), 1;
  }
  if (gradrail_leave(client) != GRADRAIL_OK) return failed("gradrail_leave");
  gradrail_free(client);
  return 0;
}
