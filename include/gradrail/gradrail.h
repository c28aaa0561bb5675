#ifndef GRADRAIL_GRADRAIL_H
#define GRADRAIL_GRADRAIL_H

/* The C interface of the worker library, for C and for languages that can call C. gradrail/client.h is the same
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
  GRADRAIL_CANCELLED = 1, /* gradrail_options.interrupted has returned a value other than 0 */
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
  const char* name; /* UTF-8, at most 1,024 bytes, no control characters */
  const int64_t* shape;
  size_t dimension_count;
} gradrail_tensor;

/* Initialize with GRADRAIL_OPTIONS_INIT. A member that is 0 or NULL has its default value. The groups are those of
 * ClientOptions in C++. New members are added at the end only; struct_bytes is the size of the struct that the program
 * was compiled with. */
typedef struct gradrail_options {
  size_t struct_bytes;

  /* The run. All workers need equal values, but for task_index. */
  const char* ps_hosts;     /* "host:port,…"; NULL: the cluster and the task index of the environment, see below */
  const char* worker_hosts; /* "host:port,…", required with ps_hosts; names only, but sync waits for as many workers */
  uint32_t task_index;      /* 0 is the chief, which offers the initial parameters */
  uint32_t bucket_bytes;    /* 0: by the size of the model, 256 KiB to 1 MiB */
  const char* mode; /* "async" (default), "sync", "ssp:K", "quorum:K", "quorum:K,grace=S", "quorum:K,late=drop" */
  /* "sgd" (default), "momentum", "nesterov", "adam" (of TensorFlow), "torch_adam" and "adamw" (of PyTorch), "mean" (no
   * optimizer: sync), "delayed_nesterov" (async) */
  const char* optimizer;
  float learning_rate; /* 0: 0.001; below, 0: TensorFlow's default; not negative, NaN or infinite */
  float momentum;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay; /* "adamw": of the parameters themselves; others: added to the gradient; "mean" has none */
  /* "delayed_nesterov": updates of a bucket from one update of the momentum to the next. 0: the number of workers at
   * the start in async and ssp, else 1. */
  uint32_t momentum_every;

  /* Compression, equal in all workers. */
  /* Elements of a gradient on its way: "fp32" (default), "bf16", "int8", "int4". "topk:P" sends the largest P percent,
   * 0.1 to 25. */
  const char* push;
  const char* returns; /* elements of parameters on their way back: "fp32" (default), "bf16", "delta" */

  /* Transport. */
  const char* transports; /* in order of preference, "auto" (default): all */
  int32_t no_fallback;    /* 1: the first transport that is refused is an error */
  int32_t checksums;      /* 1: CRC32C over every payload */
  const char* bind_host;  /* source address of network connections; NULL: the kernel's choice */
  double path_timeout_s;  /* a data connection that acknowledges nothing for so long is lost, at most 1e9; 0: 10 */
  uint32_t streams;       /* TCP connections on each rail, at most 64. 0: one, and more on links of 40 Gb/s and above */
  int32_t no_rails;       /* 1: one of the network interfaces that a parameter server offers, also if it has several */

  /* Security, equal in all tasks. Several hosts require a secret or TLS, or `insecure`. */
  const char* secret_file;     /* mode 0600; NULL: the job has no secret */
  const char* trusted_ca_file; /* TLS: PEM, of the parameter servers' certificates; NULL: no TLS */
  const char* cert_file;       /* PEM, for parameter servers that require one */
  const char* key_file;
  int32_t encrypt_data; /* 1: data between hosts is encrypted; needs secret_file or TLS */
  int32_t insecure;     /* 1: no authentication */

  /* Recovery. A time is at most 1e9. */
  const char* backup_hosts; /* "host:port,…": the backup of each parameter server, in their order; NULL: none */
  double join_timeout_s;    /* until all parameter servers have started; 0: half an hour */
  double rejoin_timeout_s;  /* for a lost parameter server to be started again; 0: no wait */

  /* Hooks. Called in the thread of a call that blocks, about twice a second. After a result other than 0 the call ends
   * with GRADRAIL_CANCELLED, and so does each later one that blocks. This thread does not call it again. It must not
   * call functions of this client. */
  int (*interrupted)(void* context);
  void* context;
} gradrail_options;

#define GRADRAIL_OPTIONS_INIT \
  { .struct_bytes = sizeof(gradrail_options) }

/* `gradrail run` and other launchers pass the cluster to programs in the environment: GRADRAIL_PS_HOSTS,
 * GRADRAIL_WORKER_HOSTS and GRADRAIL_TASK_INDEX. Optional are GRADRAIL_BACKUP_HOSTS, GRADRAIL_SECRET_FILE,
 * GRADRAIL_TRUSTED_CA_FILE, GRADRAIL_CERT_FILE, GRADRAIL_KEY_FILE, GRADRAIL_JOIN_TIMEOUT, GRADRAIL_REJOIN_TIMEOUT,
 * GRADRAIL_ENCRYPT_DATA=1 and GRADRAIL_INSECURE=1. A NULL ps_hosts selects
 * them; worker_hosts and task_index have no effect then. Another member that is set has priority over its variable.
 *
 * Functions that return gradrail_status: after a result other than GRADRAIL_OK, gradrail_last_error() has its text. A
 * call out of order (start twice, exchange before start, before wait or after finish_steps, any call after leave) is
 * refused and changes nothing. After another error of start, wait, step, pull or barrier only leave and free are
 * useful. */

/* On success the caller must free *client. On failure *client is NULL. */
GRADRAIL_API gradrail_status gradrail_join(const gradrail_options* options, const gradrail_tensor* tensors,
                                           size_t tensor_count, gradrail_client** client);

/* The same for a model in fragments: named sets of tensors. `fragments` has the name for each tensor; NULL: none. Each
 * fragment has steps of its own. It can be exchanged alone, while others are under way. A function of one fragment
 * takes its index. Fragments count in the order of their first tensors. Other functions concern all fragments. */
GRADRAIL_API gradrail_status gradrail_join_fragments(const gradrail_options* options, const gradrail_tensor* tensors,
                                                     const char* const* fragments, size_t tensor_count,
                                                     gradrail_client** client);

/* fp32, row by row; valid until gradrail_free. The program must not access them between exchange and wait. `elements`
 * may be NULL. A NULL result: the tensor does not exist. Gradients are zero at first. The library changes none of them:
 * after start, wait and pull they are as the program has written them. */
GRADRAIL_API float* gradrail_parameters(gradrail_client* client, size_t tensor_index, size_t* elements);
GRADRAIL_API float* gradrail_gradients(gradrail_client* client, size_t tensor_index, size_t* elements);

/* Once, before the first exchange: the chief of a new cluster offers its parameters, other workers fetch them. */
GRADRAIL_API gradrail_status gradrail_start(gradrail_client* client);

/* Optional, once per step: this gradient is complete and may leave; its parameters are not read again before wait. */
GRADRAIL_API gradrail_status gradrail_ready(gradrail_client* client, size_t tensor_index);
/* The same for `count` tensors. Nothing is changed if one of them cannot be reported. */
GRADRAIL_API gradrail_status gradrail_ready_many(gradrail_client* client, const size_t* tensor_indexes, size_t count);
/* Pushes the gradients that have not left yet. Returns at once. */
GRADRAIL_API gradrail_status gradrail_exchange(gradrail_client* client);
/* Blocks until all fresh parameters have arrived. FAILED_PRECONDITION: gradrail_ready has reported some tensors only,
 * and gradrail_exchange was not called. */
GRADRAIL_API gradrail_status gradrail_wait(gradrail_client* client);
/* exchange and wait in one call, for programs that do nothing between them. The errors are those of both. */
GRADRAIL_API gradrail_status gradrail_step(gradrail_client* client);
/* gradrail_exchange and gradrail_wait for one fragment. */
GRADRAIL_API gradrail_status gradrail_exchange_fragment(gradrail_client* client, size_t fragment);
GRADRAIL_API gradrail_status gradrail_wait_fragment(gradrail_client* client, size_t fragment);
/* Updates applied to the parameters of a fragment that this worker holds. 0: there is no such fragment. */
GRADRAIL_API uint64_t gradrail_fragment_step(const gradrail_client* client, size_t fragment);
/* Fetches the current parameters without pushing. */
GRADRAIL_API gradrail_status gradrail_pull(gradrail_client* client);

/* Sets the learning rate of the next steps, 0 or more, between wait and exchange. "async", "ssp:K": for the gradients
 * of this worker. Otherwise all workers set the same rate for a step: "sync" refuses a worker with another one, and in
 * "quorum:K" the rate of the lowest worker counts. */
GRADRAIL_API gradrail_status gradrail_set_learning_rate(gradrail_client* client, float rate);

/* Sets the weight of the next gradients in the mean of a step, such as the number of samples. It is more than 0, and at
 * first 1. It has no effect in "async" and "ssp:K", which form no mean. */
GRADRAIL_API gradrail_status gradrail_set_weight(gradrail_client* client, float weight);

/* Updates applied to the parameters that this worker holds. */
GRADRAIL_API uint64_t gradrail_global_step(const gradrail_client* client);

/* The index of this worker, and whether it is the chief now: the lowest worker that is live. Any thread. */
GRADRAIL_API uint32_t gradrail_task_index(const gradrail_client* client);
GRADRAIL_API int gradrail_is_chief(const gradrail_client* client);
/* Steps that this worker has completed. async: its own. Otherwise the common steps of all workers: after a late join or
 * a dropped gradient the worker continues at the position of the others. */
GRADRAIL_API uint64_t gradrail_position(const gradrail_client* client);
/* The same for a fragment, counted from where gradrail_position counts: -1 where it was one step behind at a restart.
 * All workers take the fragment with the lowest position next, and the first of equal ones. Then they never wait for
 * each other in different fragments. -1 as well: there is no such
 * fragment, or the client has left. */
GRADRAIL_API int64_t gradrail_fragment_position(const gradrail_client* client, size_t fragment);

/* The statistics of this client up to now, as JSON: counters, exchange times in seconds, paths and their reasons. The
 * text is valid until the next call with this client. NULL: out of memory, or `client` is NULL. */
GRADRAIL_API const char* gradrail_stats_json(gradrail_client* client);

/* Blocks until every worker has called it with this name. It does not wait for workers that left or were lost. The n-th
 * call waits for the n-th calls of the others. A worker that was started again counts from 1: choose another name for
 * each phase of a run, such as "epoch 5". */
GRADRAIL_API gradrail_status gradrail_barrier(gradrail_client* client, const char* name);

/* Saves parameters, optimizer state and step at every parameter server, in their shared checkpoint folder. For the
 * chief, between wait and exchange. It waits for a save of another worker, which was the chief before. */
GRADRAIL_API gradrail_status gradrail_save_checkpoint(gradrail_client* client);

/* The same beside further steps: begin returns when the state is copied, finish when the files are written. */
GRADRAIL_API gradrail_status gradrail_begin_checkpoint(gradrail_client* client);
GRADRAIL_API gradrail_status gradrail_finish_checkpoint(gradrail_client* client);

/* Declares that this worker pushes no further gradients: the others do not wait for them. */
GRADRAIL_API gradrail_status gradrail_finish_steps(gradrail_client* client);

/* Ends this worker's part of the run; the other workers continue. */
GRADRAIL_API gradrail_status gradrail_leave(gradrail_client* client);
/* Ends the run of this worker with a reason: the parameter servers count it as lost at once. */
GRADRAIL_API gradrail_status gradrail_give_up(gradrail_client* client, const char* reason);
/* Leaves, unless the client has already left or failed. NULL is legal. */
GRADRAIL_API void gradrail_free(gradrail_client* client);

/* Sends each record of the log to `log` instead of stderr; NULL: to stderr again. `level` is 0 debug, 1 info, 2 warning
 * or 3 error, and records below `least_level` are not sent. Any thread of the library may call `log`. No call of it is
 * under way after the return. */
typedef void (*gradrail_log)(int level, const char* text, void* context);
GRADRAIL_API void gradrail_set_log(gradrail_log log, int least_level, void* context);

/* The version of the library, such as "0.2.0". The text is valid until the program ends. */
GRADRAIL_API const char* gradrail_version(void);

/* The error text of the last failed call of this thread; "" if no call has failed. Valid until its next failure. */
GRADRAIL_API const char* gradrail_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
