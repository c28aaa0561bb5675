#ifndef GRADRAIL_WORKER_GRADRAIL_H
#define GRADRAIL_WORKER_GRADRAIL_H

/* The worker's library for C, and for languages that can call C. The functions are those of worker/client/client.h,
 * which has the longer comments.
 *
 *   gradrail_options options = GRADRAIL_OPTIONS_INIT;
 *   options.ps_hosts = "10.0.0.1:2222"; options.worker_hosts = "10.0.0.2:2222,10.0.0.3:2222"; options.task_index = 0;
 *   gradrail_tensor tensors[] = {{"W", w_shape, 2}, {"b", b_shape, 1}};
 *   gradrail_client* client = NULL;
 *   if (gradrail_join(&options, tensors, 2, &client) != GRADRAIL_OK) puts(gradrail_last_error());
 *   fill gradrail_parameters(client, i, NULL) with initial values;  gradrail_start(client);
 *   each step: read parameters, write gradients, gradrail_exchange(client), gradrail_wait(client);
 *   gradrail_leave(client); gradrail_free(client);
 *
 * Threads   A client belongs to one thread at a time. gradrail_last_error() is the calling thread's.
 * Signals   The library installs no handler and needs none. None of these functions runs oneDNN; only the models of the
 *           gradrail program do. A program that computes with those models and has signal handlers needs
 *           oneDNN 3.11.2 or later, or DNNL_MAX_CPU_ISA=SSE41 in its environment. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRADRAIL_API __attribute__((visibility("default")))

/* Numbers are those of gRPC and absl; others of theirs may be returned too. */
typedef enum gradrail_status {
  GRADRAIL_OK = 0,
  GRADRAIL_INVALID_ARGUMENT = 3,
  GRADRAIL_DEADLINE_EXCEEDED = 4,
  GRADRAIL_ALREADY_EXISTS = 6,      /* the task index runs already */
  GRADRAIL_RESOURCE_EXHAUSTED = 8,  /* memory or descriptors; the text names the limit */
  GRADRAIL_FAILED_PRECONDITION = 9, /* options or schema differ from the other workers', or a call out of order */
  GRADRAIL_ABORTED = 10,            /* the run has ended early: the text has the reason */
  GRADRAIL_INTERNAL = 13,
  GRADRAIL_UNAVAILABLE = 14, /* a parameter server was lost: the run may be tried again */
  GRADRAIL_DATA_LOSS = 15    /* a damaged checkpoint: the text names the file */
} gradrail_status;

typedef struct gradrail_client gradrail_client;

typedef struct gradrail_tensor {
  const char* name;
  const int64_t* shape;
  size_t dimension_count;
} gradrail_tensor;

/* Begin with GRADRAIL_OPTIONS_INIT. A member that is 0 or NULL selects its default. New versions add members at the
 * end; struct_bytes states which members the program has. */
typedef struct gradrail_options {
  size_t struct_bytes;
  const char* ps_hosts;     /* "host:port,…", needed */
  const char* worker_hosts; /* "host:port,…", needed; only names, except that sync waits for as many workers */
  uint32_t task_index;      /* 0 is the chief: its initial parameters count */
  uint32_t bucket_bytes;    /* 0: 1 MiB */
  const char* mode;         /* "async" (default), "sync", "ssp:K", "backup:B" */
  const char* optimizer;    /* "sgd" (default), "momentum", "nesterov", "adam" */
  float learning_rate;      /* 0: 0.001; the others 0: TensorFlow's; never negative, NaN or infinite */
  float momentum;
  float beta1;
  float beta2;
  float epsilon;
  const char* transports; /* in order of preference, "auto" (default): all */
  int32_t no_fallback;    /* 1: the first transport that is refused is an error */
  int32_t checksums;      /* 1: CRC32C over every payload */
  const char* bind_host;  /* source address of network connections; NULL: the kernel's choice */
  double join_timeout_s;  /* for all parameter servers to come up, to 1e9; 0: half an hour */
  /* How the control plane is kept safe; all tasks alike. Beyond this host one of them is needed, or `insecure`. */
  const char* secret_file;     /* mode 0600; NULL: the job has no secret */
  const char* trusted_ca_file; /* TLS: PEM, of the parameter servers' certificates; NULL: no TLS */
  const char* cert_file;       /* PEM, for parameter servers that ask for one */
  const char* key_file;
  int32_t insecure; /* 1: no authentication */
} gradrail_options;

#define GRADRAIL_OPTIONS_INIT \
  { .struct_bytes = sizeof(gradrail_options) }

/* If a function does not return GRADRAIL_OK, gradrail_last_error() has the text of the error. After an error of start,
 * wait, pull or barrier only leave and free are useful. A call out of order is refused and changes nothing: a second
 * start, an exchange before start or before wait, or any call after leave. */

/* On success *client is the caller's to free, else NULL. */
GRADRAIL_API gradrail_status gradrail_join(const gradrail_options* options, const gradrail_tensor* tensors,
                                           size_t tensor_count, gradrail_client** client);

/* fp32, row by row; valid until gradrail_free, not to be touched between exchange and wait. `elements` may be NULL.
 * NULL: there is no such tensor. */
GRADRAIL_API float* gradrail_parameters(gradrail_client* client, size_t tensor_index, size_t* elements);
GRADRAIL_API float* gradrail_gradients(gradrail_client* client, size_t tensor_index, size_t* elements);

/* Once, before the first exchange: the chief of a fresh cluster offers its parameters, all others fetch them. */
GRADRAIL_API gradrail_status gradrail_start(gradrail_client* client);

/* Optional: this gradient is complete, its parameters are not read again before wait: it may go out. Once a step. */
GRADRAIL_API gradrail_status gradrail_ready(gradrail_client* client, size_t tensor_index);
/* Pushes what has not gone out yet. Returns at once. */
GRADRAIL_API gradrail_status gradrail_exchange(gradrail_client* client);
/* Until all fresh parameters are here. */
GRADRAIL_API gradrail_status gradrail_wait(gradrail_client* client);
/* Fetches the current parameters without pushing. */
GRADRAIL_API gradrail_status gradrail_pull(gradrail_client* client);

/* Updates applied to the parameters that this worker holds. */
GRADRAIL_API uint64_t gradrail_global_step(const gradrail_client* client);

/* Until every worker has called it with this name; workers that left or were lost are not waited for. */
GRADRAIL_API gradrail_status gradrail_barrier(gradrail_client* client, const char* name);

/* Saves parameters, optimizer state and step at every parameter server, in the folder that each was given: one that
 * all of them share. For the chief, between wait and exchange. */
GRADRAIL_API gradrail_status gradrail_save_checkpoint(gradrail_client* client);

/* Ends this worker's part of the run; the other workers continue. */
GRADRAIL_API gradrail_status gradrail_leave(gradrail_client* client);
/* Leaves if that has not been done and nothing went wrong. NULL is legal. */
GRADRAIL_API void gradrail_free(gradrail_client* client);

/* The version of the library, such as "0.1.0". The text is valid until the program ends. */
GRADRAIL_API const char* gradrail_version(void);

/* The text of the last error of this thread; "" if no call has failed. Valid until the next error of the thread. */
GRADRAIL_API const char* gradrail_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
