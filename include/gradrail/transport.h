#ifndef GRADRAIL_TRANSPORT_PLUGIN_H
#define GRADRAIL_TRANSPORT_PLUGIN_H

/* The interface of a transport plug-in, in C. docs/transports.md is the guide, worker/examples/plugin a complete plug-in.
 *
 * A plug-in is a shared object libgradrail_transport_<name>.so. It includes this header only, defines the three handle
 * types as it needs them, and exports its table of functions:
 *
 *   const gradrail_transport_table gradrail_transport_v1 = {
 *       .table_bytes = sizeof(gradrail_transport_table), .open = my_open, .close = my_close, ...};
 *
 * Versions   The symbol names the major version. Within a major version no struct, constant or function changes. A
 *            minor version adds functions at the end of the table; table_bytes states which functions a plug-in has.
 *            gradrail treats a function beyond table_bytes as NULL, and ignores functions that it does not know.
 * Errors     A function with a `gradrail_transport_text* error` returns a code of gradrail_transport_status. With every
 *            code but OK and RESOURCE_EXHAUSTED it writes one sentence to `error`: the object, the cause, the remedy.
 *            gradrail puts the name of the transport in front. Results are used only with OK.
 * Checks     gradrail passes no NULL pointer except where stated, no handle that was ended, and no slice outside its
 *            region. It detects completions that the plug-in must not report, logs them as a defect of the plug-in, and
 *            closes all connections of the context.
 * Threads    A context, its connections and its regions have one owner thread at a time. Contexts of one process may
 *            have different owner threads. Only poll() may complete operations; no call waits, except connect().
 * Lifetime   A plug-in stays loaded until the process exits. gradrail ends all connections and regions of a context
 *            before it closes the context. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRADRAIL_TRANSPORT_TEXT_BYTES 1024        /* an error, an address, a description; with the final NUL */
#define GRADRAIL_TRANSPORT_KEY_BYTES 512          /* largest key of a region */
#define GRADRAIL_TRANSPORT_MIN_MESSAGE_BYTES 4096 /* a plug-in must carry messages of this size */
#define GRADRAIL_TRANSPORT_MIN_IMMEDIATE_BITS 20  /* and immediates of so many bits */

/* The plug-in defines these types. gradrail uses pointers to them as handles. */
typedef struct gradrail_transport_context gradrail_transport_context;
typedef struct gradrail_transport_connection gradrail_transport_connection;
typedef struct gradrail_transport_region gradrail_transport_region;

/* The numbers are those of gRPC. */
typedef enum gradrail_transport_status {
  GRADRAIL_TRANSPORT_OK = 0,
  GRADRAIL_TRANSPORT_INVALID_ARGUMENT = 3,    /* not an address, not a key, memory that the transport cannot reach */
  GRADRAIL_TRANSPORT_DEADLINE_EXCEEDED = 4,   /* connect: no answer in time */
  GRADRAIL_TRANSPORT_NOT_FOUND = 5,           /* open: no such device */
  GRADRAIL_TRANSPORT_ALREADY_EXISTS = 6,      /* listen: the address is in use */
  GRADRAIL_TRANSPORT_PERMISSION_DENIED = 7,   /* wrong key, missing right, range outside the region */
  GRADRAIL_TRANSPORT_RESOURCE_EXHAUSTED = 8,  /* a post: the queue is full, poll and try again; else: a limit */
  GRADRAIL_TRANSPORT_FAILED_PRECONDITION = 9, /* open: not usable on this host */
  GRADRAIL_TRANSPORT_UNIMPLEMENTED = 12,      /* an optional operation */
  GRADRAIL_TRANSPORT_INTERNAL = 13,           /* a defect of the plug-in or of the library below */
  GRADRAIL_TRANSPORT_UNAVAILABLE = 14,        /* the peer is unreachable or lost */
  GRADRAIL_TRANSPORT_DATA_LOSS = 15           /* damaged data */
} gradrail_transport_status;

/* Memory of gradrail for a text in printable ASCII. The plug-in ends it with NUL. */
typedef struct gradrail_transport_text {
  char text[GRADRAIL_TRANSPORT_TEXT_BYTES];
} gradrail_transport_text;

typedef struct gradrail_transport_key {
  size_t bytes;
  unsigned char data[GRADRAIL_TRANSPORT_KEY_BYTES];
} gradrail_transport_key;

typedef enum gradrail_transport_log_level {
  GRADRAIL_TRANSPORT_LOG_DEBUG = 0,
  GRADRAIL_TRANSPORT_LOG_INFO = 1,
  GRADRAIL_TRANSPORT_LOG_WARN = 2,
  GRADRAIL_TRANSPORT_LOG_ERROR = 3
} gradrail_transport_log_level;

/* The strings are valid during open() only, the function until the process exits. */
typedef struct gradrail_transport_options {
  const char* bind_host; /* address of the network interface of this task; "": the transport chooses */
  int rdma_only;         /* not 0: an RDMA transport must not open if no RDMA device would carry the bytes */
  void (*log)(int level, const char* text); /* any thread */
} gradrail_transport_options;

/* Fields that are 0 state that the context lacks the feature. */
typedef struct gradrail_transport_capabilities {
  size_t max_message_bytes;
  uint32_t immediate_bits;  /* the low bits of an immediate that arrive, at most 64 */
  uint32_t one_sided;       /* puts arrive although the owner of the target does not poll */
  uint32_t ordered_puts;    /* the device keeps the order of puts; else the transport emulates it */
  uint32_t direct_map;      /* map() gives a pointer into the memory of the peer */
  uint32_t gpu_dma_buf;     /* register_memory() takes GPU memory by its dma-buf */
  uint32_t gpu_peer_memory; /* register_memory() takes GPU memory by its address */
} gradrail_transport_capabilities;

/* Rights of a peer that holds the key of a region. */
typedef enum gradrail_transport_access {
  GRADRAIL_TRANSPORT_LOCAL = 0,
  GRADRAIL_TRANSPORT_REMOTE_READ = 1,
  GRADRAIL_TRANSPORT_REMOTE_WRITE = 2 /* bits: 3 allows both */
} gradrail_transport_access;

typedef enum gradrail_transport_memory_kind {
  GRADRAIL_TRANSPORT_HOST = 0,
  GRADRAIL_TRANSPORT_GPU_DMA_BUF = 1,
  GRADRAIL_TRANSPORT_GPU_PEER_MEMORY = 2
} gradrail_transport_memory_kind;

typedef struct gradrail_transport_memory {
  void* data; /* address in this process, or of the GPU; NULL only if bytes is 0 */
  size_t bytes;
  uint32_t kind;           /* gradrail_transport_memory_kind */
  uint32_t access;         /* gradrail_transport_access */
  int fd;                  /* host: a sealed memfd that another process may map; `data` is its start; or -1 */
  int gpu;                 /* GPU: its number in this process; else -1 */
  int dma_buf_fd;          /* GPU_DMA_BUF: valid during the call only; else -1 */
  uint64_t dma_buf_bytes;  /* of whole pages */
  uint64_t dma_buf_offset; /* of `data` behind the start of the dma-buf */
} gradrail_transport_memory;

typedef struct gradrail_transport_put {
  const gradrail_transport_region* source; /* NULL if bytes is 0 */
  size_t source_offset;
  size_t bytes;           /* 0: the put only notifies, and has no target */
  uint64_t target_region; /* result of import_region() */
  uint64_t target_offset;
  uint32_t notify;    /* not 0: the peer reports PUT_ARRIVED with `immediate` */
  uint64_t immediate; /* within immediate_bits */
  uint64_t operation; /* not 0: PUT_DONE reports this number */
} gradrail_transport_put;

typedef struct gradrail_transport_get {
  gradrail_transport_region* target; /* NULL if bytes is 0 */
  size_t target_offset;
  size_t bytes;
  uint64_t source_region; /* result of import_region() */
  uint64_t source_offset;
  uint64_t operation; /* GET_DONE reports this number; never 0 */
} gradrail_transport_get;

typedef enum gradrail_transport_completion_kind {
  GRADRAIL_TRANSPORT_CONNECTED =
      1, /* a peer has connected to the listener: a new connection, the first completion of it */
  GRADRAIL_TRANSPORT_PUT_DONE = 2,    /* the put no longer reads its source; it may not have arrived */
  GRADRAIL_TRANSPORT_GET_DONE = 3,    /* the get has filled its target */
  GRADRAIL_TRANSPORT_PUT_ARRIVED = 4, /* this put of the peer, and each earlier put of it, is visible in memory here */
  GRADRAIL_TRANSPORT_MESSAGE = 5,
  GRADRAIL_TRANSPORT_PEER_LOST = 6 /* the last completion of a connection, reported once */
} gradrail_transport_completion_kind;

typedef struct gradrail_transport_completion {
  uint32_t kind; /* gradrail_transport_completion_kind */
  gradrail_transport_connection* connection;
  uint64_t operation;  /* PUT_DONE, GET_DONE */
  uint64_t immediate;  /* PUT_ARRIVED */
  const void* message; /* MESSAGE: valid until the next poll() of the context */
  size_t message_bytes;
  int cause;              /* PEER_LOST: a code other than OK */
  const char* cause_text; /* PEER_LOST: ends with NUL, valid until the next poll() of the context */
} gradrail_transport_completion;

/* Each function is required unless it is marked optional. */
typedef struct gradrail_transport_table {
  size_t table_bytes; /* sizeof(gradrail_transport_table) */

  /* Optional. Name and version of the library behind the plug-in: "libfabric 1.17.0". Any thread; valid until the
   * process exits. */
  const char* (*library)(void);

  /* Opens a device. Any thread, which becomes the owner thread.
   * Errors  NOT_FOUND, FAILED_PRECONDITION, UNAVAILABLE: why the transport is not usable here. */
  int (*open)(const gradrail_transport_options* options, gradrail_transport_context** context,
              gradrail_transport_text* error);
  void (*close)(gradrail_transport_context* context);

  /* Constant for a context. The result is zeroed before the call. */
  void (*capabilities)(const gradrail_transport_context* context, gradrail_transport_capabilities* result);

  /* Makes memory usable for puts and gets of the context, and of peers as far as `access` allows. `key` lets a peer
   * import the region: it must be hard to guess, and is of no use after deregister_memory().
   * Errors  INVALID_ARGUMENT: memory that the transport cannot reach. FAILED_PRECONDITION: the device does not reach
   *         this GPU. RESOURCE_EXHAUSTED: the text names the limit. */
  int (*register_memory)(gradrail_transport_context* context, const gradrail_transport_memory* memory,
                         gradrail_transport_region** region, gradrail_transport_key* key,
                         gradrail_transport_text* error);
  /* No operation of this side uses the region any more. Later access of a peer ends the connection of that peer. */
  void (*deregister_memory)(gradrail_transport_context* context, gradrail_transport_region* region);

  /* Accepts peers from now on; once in a context. The form of addresses belongs to the transport, but "host:0" must
   * select a free port of the host. `bound` is the address that peers connect to.
   * Errors  ALREADY_EXISTS: in use. INVALID_ARGUMENT: not an address. */
  int (*listen)(gradrail_transport_context* context, const char* address, gradrail_transport_text* bound,
                gradrail_transport_text* error);

  /* Opens a connection; waits for at most timeout_ns. Posts may follow at once. A later failure is PEER_LOST.
   * Errors  UNAVAILABLE, DEADLINE_EXCEEDED, INVALID_ARGUMENT; the text names the address. */
  int (*connect)(gradrail_transport_context* context, const char* address, uint64_t timeout_ns,
                 gradrail_transport_connection** connection, gradrail_transport_text* error);
  /* Ends a connection, also a lost one, and frees it. Posts that are not complete may be lost. The peer reports
   * PEER_LOST. After the return the context reports nothing for it, and no put of this peer changes memory here. */
  void (*disconnect)(gradrail_transport_context* context, gradrail_transport_connection* connection);

  /* Makes a key of the peer usable in this connection: `region` is any number of the plug-in's choice.
   * Errors  INVALID_ARGUMENT: not a key of this transport. */
  int (*import_region)(gradrail_transport_connection* connection, const void* key, size_t key_bytes, uint64_t* region,
                       gradrail_transport_text* error);

  /* These three start an operation and return at once. Puts of one connection become visible in the order of the posts,
   * at the latest with the notice of a later put. Messages arrive in order. Messages and gets are not ordered against
   * puts. A peer that refuses an operation ends the connection: both sides report PEER_LOST.
   * Errors  RESOURCE_EXHAUSTED: the queue is full; queues are bounded. PERMISSION_DENIED, INVALID_ARGUMENT: outside the
   *         remote region. UNAVAILABLE: the peer is lost. */
  int (*put)(gradrail_transport_connection* connection, const gradrail_transport_put* put,
             gradrail_transport_text* error);
  int (*get)(gradrail_transport_connection* connection, const gradrail_transport_get* get,
             gradrail_transport_text* error);
  /* Copies the message. message may be NULL if bytes is 0; bytes is at most max_message_bytes. */
  int (*send)(gradrail_transport_connection* connection, const void* message, size_t bytes,
              gradrail_transport_text* error);

  /* Optional unless direct_map is set. The region of the peer in this address space, until disconnect().
   * Errors  RESOURCE_EXHAUSTED: not mapped yet, poll and try again. PERMISSION_DENIED: no right. */
  int (*map)(gradrail_transport_connection* connection, uint64_t region, void** address,
             gradrail_transport_text* error);

  /* Optional. Both ends for people: "10.0.0.2:40112 > 10.0.0.1:2223". */
  void (*describe)(const gradrail_transport_connection* connection, gradrail_transport_text* result);
  /* Optional. The device that carries the bytes, for people and as a label of metrics: "mlx5_0". */
  void (*device)(const gradrail_transport_connection* connection, gradrail_transport_text* result);
  /* Optional. Not 0 if an RDMA device carries the bytes. May change until the first put is complete. */
  int (*uses_rdma)(const gradrail_transport_connection* connection);

  /* Makes progress, and reports at most `capacity` completions. Entries are zeroed before the call. */
  size_t (*poll)(gradrail_transport_context* context, gradrail_transport_completion* completions, size_t capacity);

  /* A descriptor for poll(2), constant for a context. It is readable when poll() has something to do, provided that
   * arm() returned 1 after the last poll(). */
  int (*wait_fd)(const gradrail_transport_context* context);
  /* Prepares to block on the descriptor: 1. Something is there already, call poll() instead: 0. */
  int (*arm)(gradrail_transport_context* context);
} gradrail_transport_table;

/* The one symbol that a plug-in exports. This declaration gives it C linkage and default visibility. */
extern __attribute__((visibility("default"))) const gradrail_transport_table gradrail_transport_v1;

#ifdef __cplusplus
}
#endif

#endif
