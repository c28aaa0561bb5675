#ifndef GRADRAIL_WORKER_GRADRAIL_H
#define GRADRAIL_WORKER_GRADRAIL_H

/* The C interface of the worker library, for C and for languages that can call C. worker/client/client.h is the same
 * interface in C++, with longer comments.
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
 * Threads   A client belongs to one thread at a time. Each thread has its own gradrail_last_error().
 * Signals   The library installs no handler and needs none. None of these functions runs oneDNN; only the models of the
 *           gradrail program do. A program that computes with those models and has signal handlers needs
 *           oneDNN 3.11.2 or later, or DNNL_MAX_CPU_ISA=SSE41 in its environment. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRADRAIL_API __attribute__((visibility("default")))

/* The numbers are those of gRPC and absl. A function may return other numbers of their lists. */
typedef enum gradrail_status {
  GRADRAIL_OK = 0,
  GRADRAIL_INVALID_ARGUMENT = 3,
  GRADRAIL_DEADLINE_EXCEEDED = 4,
  GRADRAIL_ALREADY_EXISTS = 6,      /* a task with this index runs already */
  GRADRAIL_RESOURCE_EXHAUSTED = 8,  /* memory or descriptors; the text names the limit */
  GRADRAIL_FAILED_PRECONDITION = 9, /* options or schema differ from the other workers', or a call out of order */
  GRADRAIL_ABORTED = 10,            /* the run was aborted: the text has the reason */
  GRADRAIL_INTERNAL = 13,
  GRADRAIL_UNAVAILABLE = 14, /* a parameter server was lost: a retry of the run may succeed */
  GRADRAIL_DATA_LOSS = 15    /* a damaged checkpoint: the text names the file */
} gradrail_status;

typedef struct gradrail_client gradrail_client;

typedef struct gradrail_tensor {
  const char* name;
  const int64_t* shape;
  size_t dimension_count;
} gradrail_tensor;

/* Initialize with GRADRAIL_OPTIONS_INIT. A member that is 0 or NULL has its default value. New members are added at the
 * end only; struct_bytes is the size of the struct that the program was compiled with. */
typedef struct gradrail_options {
  size_t struct_bytes;
  const char* ps_hosts;     /* "host:port,…", required */
  const char* worker_hosts; /* "host:port,…", required; names only, but sync waits for as many workers */
  uint32_t task_index;      /* 0 is the chief, which offers the initial parameters */
  uint32_t bucket_bytes;    /* 0: 1 MiB */
  const char* mode;         /* "async" (default), "sync", "ssp:K", "backup:B" */
  const char* optimizer;    /* "sgd" (default), "momentum", "nesterov", "adam" */
  float learning_rate;      /* 0: 0.001; below, 0: TensorFlow's default; not negative, NaN or infinite */
  float momentum;
  float beta1;
  float beta2;
  float epsilon;
  const char* transports; /* in order of preference, "auto" (default): all */
  int32_t no_fallback;    /* 1: the first transport that is refused is an error */
  int32_t checksums;      /* 1: CRC32C over every payload */
  const char* bind_host;  /* source address of network connections; NULL: the kernel's choice */
  double join_timeout_s;  /* until all parameter servers have started, at most 1e9; 0: half an hour */
  /* Authentication of the control plane, equal in all tasks. Several hosts require it, or `insecure`. */
  const char* secret_file;     /* mode 0600; NULL: the job has no secret */
  const char* trusted_ca_file; /* TLS: PEM, of the parameter servers' certificates; NULL: no TLS */
  const char* cert_file;       /* PEM, for parameter servers that require one */
  const char* key_file;
  int32_t insecure;     /* 1: no authentication */
  int64_t encrypt_data; /* 1: data between hosts is encrypted; needs secret_file or TLS, equal in all tasks */
} gradrail_options;

#define GRADRAIL_OPTIONS_INIT \
  { .struct_bytes = sizeof(gradrail_options) }

/* Functions that return gradrail_status: after a result other than GRADRAIL_OK, gradrail_last_error() has its text. A
 * call out of order (start twice, exchange before start or before wait, any call after leave) is refused and changes
 * nothing. After another error of start, wait, pull or barrier only leave and free are useful. */

/* On success the caller must free *client. On failure *client is NULL. */
GRADRAIL_API gradrail_status gradrail_join(const gradrail_options* options, const gradrail_tensor* tensors,
                                           size_t tensor_count, gradrail_client** client);

/* fp32, row by row; valid until gradrail_free. The program must not access them between exchange and wait. `elements`
 * may be NULL. A NULL result: the tensor does not exist. */
GRADRAIL_API float* gradrail_parameters(gradrail_client* client, size_t tensor_index, size_t* elements);
GRADRAIL_API float* gradrail_gradients(gradrail_client* client, size_t tensor_index, size_t* elements);

/* Once, before the first exchange: the chief of a new cluster offers its parameters, other workers fetch them. */
GRADRAIL_API gradrail_status gradrail_start(gradrail_client* client);

/* Optional, once per step: this gradient is complete and may leave; its parameters are not read again before wait. */
GRADRAIL_API gradrail_status gradrail_ready(gradrail_client* client, size_t tensor_index);
/* Pushes the gradients that have not left yet. Returns at once. */
GRADRAIL_API gradrail_status gradrail_exchange(gradrail_client* client);
/* Blocks until all fresh parameters have arrived. FAILED_PRECONDITION: gradrail_ready has reported some tensors only,
 * and gradrail_exchange was not called. */
GRADRAIL_API gradrail_status gradrail_wait(gradrail_client* client);
/* Fetches the current parameters without pushing. */
GRADRAIL_API gradrail_status gradrail_pull(gradrail_client* client);

/* Updates applied to the parameters that this worker holds. */
GRADRAIL_API uint64_t gradrail_global_step(const gradrail_client* client);

/* Blocks until every worker has called it with this name. It does not wait for workers that left or were lost. */
GRADRAIL_API gradrail_status gradrail_barrier(gradrail_client* client, const char* name);

/* Saves parameters, optimizer state and step at every parameter server, in their shared checkpoint folder. For the
 * chief, between wait and exchange. */
GRADRAIL_API gradrail_status gradrail_save_checkpoint(gradrail_client* client);

/* Ends this worker's part of the run; the other workers continue. */
GRADRAIL_API gradrail_status gradrail_leave(gradrail_client* client);
/* Leaves, unless the client has already left or failed. NULL is legal. */
GRADRAIL_API void gradrail_free(gradrail_client* client);

/* The version of the library, such as "0.1.0". The text is valid until the program ends. */
GRADRAIL_API const char* gradrail_version(void);

/* The error text of the last failed call of this thread; "" if no call has failed. Valid until its next failure. */
GRADRAIL_API const char* gradrail_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
